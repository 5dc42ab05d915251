// The part of the scheduler that decides which answers get KV caches and a seat (place) in the batch.
#include <algorithm>
#include <exception>
#include <limits>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "deploy/serve/schedule/active.h"

namespace specdec::deploy {

namespace {

constexpr int kRejectTop = 16;  // number of the target's likeliest tokens recorded at a rejected position

// Returns whether a failure to open or prefill a sequence counts as a failure of the device. Only errors of the device
// and of LibTorch count, because a request must not be able to end the server.
bool blames_device(const std::exception& failure) {
  const auto* error = dynamic_cast<const Error*>(&failure);
  return error ? error->kind() == ErrorKind::kDevice : dynamic_cast<const std::bad_alloc*>(&failure) == nullptr;
}

}  // namespace

void Scheduler::admit() {
  int64_t budget = options_.prompt_budget_tokens;
  while (budget > 0) {
    Active* const next = next_to_prefill();
    if (!next) return;
    budget -= prefill(*next, budget);
  }
}

// Picks the sequence to prefill next. Returns null if no sequence can be prefilled now. Prefers, in this order:
// - a sequence whose prefill has begun;
// - the oldest preempted sequence;
// - an answer from the queue; if the batch is full, or if an answer is unseated (has lost its place in the batch), only
//   of a tenant without a running answer;
// - the oldest unseated sequence.
Scheduler::Active* Scheduler::next_to_prefill() {
  Active *preempted = nullptr, *unseated = nullptr;
  bool room = true;
  for (auto it = active_.rbegin(); it != active_.rend(); ++it) {
    Active& a = **it;
    room &= !a.holds();
    if (a.ended) continue;
    if (a.phase == Phase::kPrefill) return &a;
    if (a.phase == Phase::kPreempted) preempted = &a;
    if (a.phase == Phase::kUnseated) unseated = &a;
  }
  if (preempted) return room || room_made_ ? seat(*preempted) : nullptr;
  const bool full = seats_taken() >= options_.max_batch;
  if (!full && !unseated) return next_from_queue();
  if (full && queue_.size() == 0) return nullptr;  // no request waits for a place in the batch
  std::set<std::string> seated;
  for (const auto& active : active_)
    if (active->holds() && !active->ended) seated.insert(active->request->tenant);
  if (queue_.waits_besides(seated) && (!full || give_up_seat())) return next_from_queue(seated);
  return full || !unseated ? nullptr : seat(*unseated);
}

Scheduler::Active* Scheduler::seat(Active& sequence) {
  sequence.phase = Phase::kPrefill;
  sequence.seated_at = clock_.seconds();
  return &sequence;
}

size_t Scheduler::seats_taken() const {
  return static_cast<size_t>(std::count_if(active_.begin(), active_.end(), [](const auto& a) {
    return a->phase != Phase::kUnseated;  // a preempted answer keeps its place in the batch
  }));
}

// Takes the seat (place in the batch) from the newest answer of the tenant with the most seats; the tenant must have at
// least two. Returns false if there is no such answer. An answer keeps its seat for at least kLeastSeconds; otherwise
// answers that replace each other would be prefilled over and over.
bool Scheduler::give_up_seat() {
  constexpr double kLeastSeconds = 0.5;
  std::map<std::string, size_t> seats;
  for (const auto& active : active_)
    if (active->holds() && !active->ended) ++seats[active->request->tenant];
  Active* chosen = nullptr;
  size_t most = 1;
  for (const auto& active : active_) {
    if (active->phase != Phase::kDecode || active->ended) continue;
    const size_t of_tenant = seats[active->request->tenant];
    if (of_tenant < std::max<size_t>(most, 2) || clock_.seconds() - active->seated_at < kLeastSeconds) continue;
    chosen = active.get();
    most = of_tenant;
  }
  return chosen && preempt(*chosen, Phase::kUnseated);
}

// Takes the next answer from the queue, skipping the tenants in `besides`, and opens it. Returns null if no answer is
// waiting or the batch is full.
Scheduler::Active* Scheduler::next_from_queue(const std::set<std::string>& besides) {
  while (seats_taken() < options_.max_batch) {
    RequestQueue::Next next = queue_.try_pop(besides);
    if (!next.request) return nullptr;
    auto sequence = std::make_unique<Active>(std::move(next.request), next.choice, tokenizer_);
    if (!start(*sequence)) continue;
    active_.push_back(std::move(sequence));
    return seat(*active_.back());
  }
  return nullptr;
}

// Finds a running answer to the same prompt of the same request, whose prefill can be reused. Returns null if there is
// none, or if the prompt's log-probabilities are requested.
const Scheduler::Active* Scheduler::sibling(const GenerationRequest& request, size_t choice) const {
  if (request.echo && request.options.logprobs >= 0) return nullptr;
  const size_t n = static_cast<size_t>(request.n);
  for (const auto& active : active_)
    if (active->request.get() == &request && active->choice / n == choice / n && active->phase == Phase::kDecode &&
        !active->ended)
      return active.get();
  return nullptr;
}

bool Scheduler::start(Active& sequence) {
  const GenerationRequest& request = *sequence.request;
  SequenceSpec spec{request.answer(sequence.choice), request.key()};
  if (share_place("rejects " + spec.conversation) < options_.reject_share) spec.request.options.reject_top = kRejectTop;
  if (const Active* same = sibling(request, sequence.choice)) spec.same_prompt = same->key;
  try {
    sequence.decoder = text::IncrementalDecoder(tokenizer_, spec.request.prompt, request.shown_tokens);
    sequence.key = runner_.start(spec);
    return true;
  } catch (const std::exception& e) {
    log(LogLevel::kError, request.id + ": starting a sequence failed: " + e.what());
    if (blames_device(e)) failures_.fetch_add(1, std::memory_order_relaxed);
    end(sequence, FinishReason::kFailed);
    return false;
  }
}

// Prefills at most `most` tokens in one pass and returns the number of tokens prefilled.
int64_t Scheduler::prefill(Active& sequence, int64_t most) {
  const GenerationRequest& request = *sequence.request;
  PrefillResult part;
  try {
    part = runner_.prefill(sequence.key, most);
  } catch (const decode::CacheFull&) {
    make_room();
    return 0;
  } catch (const std::exception& e) {
    log(LogLevel::kError, request.id + ": prefilling a prompt failed: " + e.what());
    if (blames_device(e)) failures_.fetch_add(1, std::memory_order_relaxed);
    end(sequence, FinishReason::kFailed);
    return 0;
  }
  sequence.prompt_read += part.tokens;
  if (!sequence.begun && sequence.prompt_read > sequence.charged) {
    queue_.read(request.tenant, sequence.prompt_read - sequence.charged);
    sequence.charged = sequence.prompt_read;
  }
  if (sequence.again) metrics_.resumed(part.tokens);
  if (!part.whole) return part.tokens;
  sequence.phase = Phase::kDecode;
  if (std::exchange(sequence.begun, true)) return part.tokens;
  metrics_.started(sequence.prompt_read + 1);  // the last prompt token is processed in the first step
  if (!request.echo) return part.tokens;
  ChoiceEvent event;
  event.logprobs = std::move(part.logprobs);
  echo(sequence, std::move(event));
  return part.tokens;
}

// Sends the prompt as the beginning of the answer's text. The prompt's first token has no log-probability, because no
// token precedes it.
void Scheduler::echo(Active& sequence, ChoiceEvent event) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  const GenerationRequest& request = *sequence.request;
  const size_t prompt = sequence.choice / static_cast<size_t>(request.n);
  event.choice = sequence.choice;
  event.echo = true;
  event.text = request.texts[prompt];
  if (request.options.logprobs >= 0)
    event.logprobs.insert(event.logprobs.begin(),
                          decode::PositionLogprobs{{request.prompts[prompt].front(), kNone}, {}});
  request.channel->push(std::move(event));
  if (request.options.max_tokens == 0) end(sequence, FinishReason::kLength);
}

// Makes room when the KV caches are full: frees the sequences that have ended or, if there are none, preempts the
// newest sequence. If a single sequence fills the caches alone, it fails.
void Scheduler::make_room() {
  Active* last = nullptr;
  size_t holders = 0;
  for (const auto& active : active_) {
    if (!active->holds()) continue;
    if (active->ended) return reap();
    last = active.get();
    ++holders;
  }
  if (!last) return;
  if (holders == 1) {
    log(LogLevel::kError, last->request->id + ": the target's KV cache cannot hold this sequence even alone");
    return end(*last, FinishReason::kNoRoom);
  }
  if (preempt(*last, Phase::kPreempted)) room_made_ = false;
}

// Frees the sequence's KV caches. If that fails, ends the sequence and returns false.
bool Scheduler::preempt(Active& sequence, Phase phase) {
  try {
    runner_.preempt(sequence.key);
  } catch (const std::exception& e) {
    log(LogLevel::kError, sequence.request->id + ": preempting a sequence failed: " + e.what());
    end(sequence, FinishReason::kFailed);
    return false;
  }
  sequence.phase = phase;
  sequence.again = true;
  sequence.prompt_read = 0;
  metrics_.preempted();
  return true;
}

}  // namespace specdec::deploy
