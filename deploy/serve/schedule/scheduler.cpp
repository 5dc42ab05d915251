#include "deploy/serve/schedule/scheduler.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/decode/answer.h"

namespace specdec::deploy {

namespace {

constexpr int kRejectTop = 16;  // likeliest tokens of the target recorded at a rejected position

// Returns whether a failure while a sequence is opened or prefilled counts against the device. Only the device itself
// and the compute library are blamed, because a request must not be able to end the server.
bool blames_device(const std::exception& failure) {
  const auto* error = dynamic_cast<const Error*>(&failure);
  return error ? error->kind() == ErrorKind::kDevice : dynamic_cast<const std::bad_alloc*>(&failure) == nullptr;
}

// Returns the markers of the thoughts in which no stop string ends an answer.
ReasoningMarkers markers_around_thoughts(const GenerationRequest& request) {
  const bool may_think = request.format && !request.format->begins_in_call && !request.stop.empty();
  return may_think ? request.format->reasoning : ReasoningMarkers();
}

}  // namespace

enum class Phase { kPrefill, kDecode, kPreempted };  // a preempted answer holds no caches

struct Scheduler::Active {
  Active(std::shared_ptr<const GenerationRequest> r, size_t c, const text::Tokenizer& tokenizer)
      : request(std::move(r)),
        choice(c),
        decoder(tokenizer),
        stop(request->stop, request->include_stop),
        thoughts(markers_around_thoughts(*request), request->format && request->format->begins_reasoning),
        cut(request->options) {}

  // Returns the text that may be sent after `piece` was added. Stop strings are looked for after the thoughts.
  std::string stopped(std::string_view piece, bool may_match);
  std::string stopped_end(bool may_match);

  std::shared_ptr<const GenerationRequest> request;
  size_t choice;
  SequenceKey key = -1;
  Phase phase = Phase::kPrefill;
  int64_t prompt_read = 0;
  int64_t charged = 0;  // prompt tokens charged to the tenant; a prefill after preemption is not
  bool begun = false;   // its prompt was completely prefilled once
  bool again = false;   // it was preempted at least once
  text::IncrementalDecoder decoder;
  StopMatcher stop;
  ThoughtSplitter thoughts;        // without stop strings it finds none
  std::string undecided;           // text that either belongs to the thoughts or is searched for stop strings
  size_t undecided_early = 0;      // its bytes at the beginning in which no stop string may complete
  std::string text;                // all text sent so far
  std::vector<int32_t> token_ids;  // all tokens so far
  ChoiceResult result;
  decode::AnswerCut cut;
  double stepped_at = 0;  // Clock::seconds() of its last tokens
  bool ended = false;
  // Its mask is not there yet, and the engine has waited for it once.
  bool late = false, waited = false;

  bool holds() const { return phase != Phase::kPreempted; }
};

std::string Scheduler::Active::stopped(std::string_view piece, bool may_match) {
  using Place = ThoughtSplitter::Place;
  std::string out;
  size_t at = 0;
  for (; at < piece.size() && thoughts.place() != Place::kAfter; ++at) {
    thoughts.push(piece[at]);
    undecided += piece[at];
    if (!may_match) undecided_early = undecided.size();
    if (thoughts.place() != Place::kThoughts) continue;
    out += std::exchange(undecided, "");
    undecided_early = 0;
  }
  if (thoughts.place() != Place::kAfter) return out;
  out += stopped_end(may_match);
  return out += stop.push(piece.substr(at), may_match);
}

// Returns the text that may be sent once the undecided text is known to follow the thoughts.
std::string Scheduler::Active::stopped_end(bool may_match) {
  const std::string text = std::exchange(undecided, "");
  const size_t early = std::exchange(undecided_early, 0);
  std::string out = stop.push(std::string_view(text).substr(0, early), false);
  return out += stop.push(std::string_view(text).substr(early), may_match);
}

Scheduler::Scheduler(SchedulerOptions options, const SchedulerParts& parts,
                     std::function<void(const FinishedAnswer&)> on_finished)
    : options_(std::move(options)),
      runner_(parts.runner),
      queue_(parts.queue),
      tokenizer_(parts.tokenizer),
      metrics_(parts.metrics),
      clock_(parts.clock),
      masks_(parts.masks),
      on_finished_(std::move(on_finished)) {}

Scheduler::~Scheduler() = default;

void Scheduler::run() {
  try {
    while (!aborted_.load()) {
      if (turn()) continue;
      if (queue_.closed() && queue_.size() == 0 && active_.empty()) return;
      queue_.wait();
    }
  } catch (const DeviceLost& lost) {
    log(LogLevel::kError, "the model can no longer be run: " + lost.what());
    lost_ = lost;
    queue_.close();
  }
  drain();
}

void Scheduler::stop_now() {
  aborted_.store(true);
  queue_.close();
}

bool Scheduler::turn() {
  reap();
  admit();
  running_.store(active_.size(), std::memory_order_relaxed);
  if (active_.empty()) return false;
  reap();  // an answer that only echoes its prompt has ended already
  const bool stepped = step();
  reap();
  metrics_.caches(runner_.cache_use());
  running_.store(active_.size(), std::memory_order_relaxed);
  return stepped;
}

// Ends the answers that were cancelled and frees those that have ended.
void Scheduler::reap() {
  for (auto& sequence : active_)
    if (!sequence->ended && sequence->request->channel->cancelled()) end(*sequence, FinishReason::kCancelled);
  std::erase_if(active_, [this](const auto& sequence) {
    if (!sequence->ended) return false;
    room_made_ |= sequence->holds();
    try {
      runner_.finish(sequence->key);
    } catch (const std::exception& e) {
      log(LogLevel::kError, sequence->request->id + ": closing a sequence failed: " + e.what());
    }
    return true;
  });
}

void Scheduler::admit() {
  int64_t budget = options_.prompt_budget_tokens;
  while (budget > 0) {
    Active* const next = next_to_prefill();
    if (!next) return;
    budget -= prefill(*next, budget);
  }
}

// Picks the sequence to prefill: one whose prefill has begun, else the oldest preempted one, else a new one. Returns
// null if there is none for now.
Scheduler::Active* Scheduler::next_to_prefill() {
  Active* preempted = nullptr;
  bool room = true;
  for (auto it = active_.rbegin(); it != active_.rend(); ++it) {
    Active& a = **it;
    room &= !a.holds();
    if (a.ended) continue;
    if (a.phase == Phase::kPrefill) return &a;
    if (a.phase == Phase::kPreempted) preempted = &a;
  }
  if (!preempted) return next_from_queue();
  if (!room && !room_made_) return nullptr;
  preempted->phase = Phase::kPrefill;
  return preempted;
}

// Takes the next answer from the queue and opens it. Returns null if none waits or the batch is full.
Scheduler::Active* Scheduler::next_from_queue() {
  while (active_.size() < options_.max_batch) {
    RequestQueue::Next next = queue_.try_pop();
    if (!next.request) return nullptr;
    auto sequence = std::make_unique<Active>(std::move(next.request), next.choice, tokenizer_);
    if (!start(*sequence)) continue;
    active_.push_back(std::move(sequence));
    return active_.back().get();
  }
  return nullptr;
}

// Finds a running answer to the same prompt of the same request, so that the prompt is not prefilled again. Returns
// null if there is none, or if the prompt's log-probabilities are requested.
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

// Prefills at most `most` tokens in one pass and returns how many it took.
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
  metrics_.started(sequence.prompt_read + 1);  // its first step processes the last token
  if (!request.echo) return part.tokens;
  ChoiceEvent event;
  event.logprobs = std::move(part.logprobs);
  echo(sequence, std::move(event));
  return part.tokens;
}

// Sends the prompt as the beginning of the text. The prompt's first token has no log-probability, because nothing
// precedes it.
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

// Makes room when the caches are full. Frees the sequences that have ended; if there are none, preempts the newest. A
// sequence that does not fit although it is alone fails.
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
  try {
    runner_.preempt(last->key);
  } catch (const std::exception& e) {
    log(LogLevel::kError, last->request->id + ": preempting a sequence failed: " + e.what());
    return end(*last, FinishReason::kFailed);
  }
  last->phase = Phase::kPreempted;
  last->again = true;
  last->prompt_read = 0;
  room_made_ = false;
  metrics_.preempted();
}

// Steps every sequence that decodes. Returns false if there is nothing to do until a late mask is there.
bool Scheduler::step() {
  if (masks_) masks_->begin_step();
  size_t late = 0;
  for (;;) {
    late = collect_batch();
    // Most masks take less time than the engine may wait. A sequence for whose mask it has waited in vain sits out.
    const auto new_late = [](const auto& a) { return a->late && !std::exchange(a->waited, true); };
    if (masks_ && std::count_if(active_.begin(), active_.end(), new_late) > 0) {
      masks_->settle();
      late = collect_batch();
    }
    if (step_running()) break;
    make_room();
  }
  const auto reads = [](const auto& a) { return a->phase == Phase::kPrefill && !a->ended; };
  return !batch_.empty() || late == 0 || std::any_of(active_.begin(), active_.end(), reads);
}

// Collects the sequences that decode and whose masks are not late. Returns how many are late.
size_t Scheduler::collect_batch() {
  batch_.clear();
  keys_.clear();
  size_t late = 0;
  for (const auto& active : active_) {
    if (active->phase != Phase::kDecode || active->ended) continue;
    active->late = !runner_.ready(active->key);
    if (active->late) {
      ++late;
      continue;
    }
    active->waited = false;
    batch_.push_back(active.get());
    keys_.push_back(active->key);
  }
  return late;
}

// Steps the batch. Returns false if the caches had no space for any of it; nothing has changed then.
bool Scheduler::step_running() {
  if (batch_.empty()) return true;
  results_.assign(batch_.size(), {});
  try {
    runner_.step(keys_, results_);
  } catch (const std::exception& e) {
    log(LogLevel::kError, std::string("a step failed: ") + e.what());
    for (StepResult& result : results_) result.failed = result.device_failed = true;
  }
  int64_t drafted = 0, failed = 0;
  size_t stepped = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    if (results_[i].cache_full) continue;
    ++stepped;
    if (results_[i].mask_late) continue;
    if (results_[i].masks_spent) {
      end(*batch_[i], FinishReason::kMasksSpent);
      continue;
    }
    if (results_[i].no_token_left) {
      end(*batch_[i], FinishReason::kNoTokenLeft);
      continue;
    }
    if (results_[i].failed || results_[i].emitted.empty()) {
      failed += results_[i].device_failed;
      end(*batch_[i], FinishReason::kFailed);
      continue;
    }
    drafted += results_[i].drafted;
    metrics_.step(results_[i]);
    try {
      deliver(*batch_[i], results_[i]);
    } catch (const std::exception& e) {
      log(LogLevel::kError, batch_[i]->request->id + ": turning tokens into text failed: " + e.what());
      if (!batch_[i]->ended) end(*batch_[i], FinishReason::kFailed);
    }
  }
  if (stepped == 0) return false;
  if (failed < static_cast<int64_t>(stepped))
    failures_.store(0, std::memory_order_relaxed);
  else
    failures_.fetch_add(failed, std::memory_order_relaxed);
  metrics_.batch(stepped, static_cast<double>(drafted) / static_cast<double>(stepped), runner_.stage_seconds(),
                 runner_.k_bases());
  if (stepped < batch_.size()) make_room();
  return true;
}

// Turns the emitted tokens into text and sends it, up to EOS, a stop token or string, or max_tokens. The tokens after
// that are dropped.
void Scheduler::deliver(Active& sequence, const StepResult& result) {
  const GenerationRequest& request = *sequence.request;
  ChoiceResult& so_far = sequence.result;
  so_far.draft = result.draft;
  so_far.counts.add_step(result.drafted, result.accepted, result.overlaps);
  if (result.drafted > 0) {
    const size_t j = static_cast<size_t>(result.accepted);
    if (so_far.accepted_histogram.size() <= static_cast<size_t>(result.drafted))
      so_far.accepted_histogram.resize(static_cast<size_t>(result.drafted) + 1);
    ++so_far.accepted_histogram[j];
  }
  if (result.rejected && so_far.rejects.size() < RejectRecord::kMaxRejects) {
    const decode::PositionLogprobs& at = *result.rejected;
    const auto position = so_far.completion_tokens + static_cast<int64_t>(result.emitted.size()) - 1;
    RejectRecord::Reject& reject = so_far.rejects.emplace_back(
        RejectRecord::Reject{position, at.token.id, result.emitted.back(), at.token.logprob, {}});
    for (const decode::TokenLogprob& t : at.top) reject.top.emplace_back(t.id, t.logprob);
  }
  ChoiceEvent event;
  event.choice = sequence.choice;
  size_t at = 0;
  const decode::AnswerEnd cut = sequence.cut.add(result.emitted, [&](int32_t token, bool is_eos) {
    event.token_ids.push_back(token);
    const std::string piece = !is_eos || request.include_stop ? sequence.decoder.push(token) : "";
    if (at < result.logprobs.size()) {
      event.logprobs.push_back(result.logprobs[at]);
      event.texts.push_back({static_cast<uint32_t>(piece.size()), static_cast<uint32_t>(characters(piece))});
    }
    ++at;
    ++so_far.completion_tokens;
    event.text += sequence.stopped(piece, so_far.completion_tokens > request.min_tokens);
    return !sequence.stop.matched();
  });
  count_tokens(sequence, static_cast<int64_t>(event.token_ids.size()));
  std::optional<FinishReason> reason;
  if (cut != decode::AnswerEnd::kNone)
    reason = cut == decode::AnswerEnd::kStop ? FinishReason::kStop : FinishReason::kLength;
  if (reason && !sequence.stop.matched()) {
    const bool may_match = so_far.completion_tokens > request.min_tokens;
    event.text += sequence.stopped(sequence.decoder.finish(), may_match);
    event.text += sequence.stopped_end(may_match);
    if (sequence.stop.matched()) reason = FinishReason::kStop;
    event.text += sequence.stop.finish();
  }
  sequence.text += event.text;
  so_far.ended_by_request =
      sequence.stop.matched() ||
      (reason == FinishReason::kStop && std::find(request.stop_tokens.begin(), request.stop_tokens.end(),
                                                  event.token_ids.back()) != request.stop_tokens.end());
  sequence.token_ids.insert(sequence.token_ids.end(), event.token_ids.begin(), event.token_ids.end());
  request.channel->push(std::move(event));
  if (reason) end(sequence, *reason);
}

// Counts the tokens of a step that belong to the answer: those up to its end.
void Scheduler::count_tokens(Active& sequence, int64_t tokens) {
  const GenerationRequest& request = *sequence.request;
  const double now = clock_.seconds();
  if (sequence.result.completion_tokens == tokens)
    metrics_.first_token(now - request.queued_at);
  else
    metrics_.tokens(static_cast<size_t>(tokens), now - sequence.stepped_at);
  sequence.stepped_at = now;
  metrics_.generated(tokens);
  queue_.generated(request.tenant, tokens);
}

void Scheduler::end(Active& sequence, FinishReason reason) {
  sequence.ended = true;
  ChoiceResult& result = sequence.result;
  result.reason = reason;
  result.counts.emitted = result.completion_tokens;
  std::erase_if(result.rejects,
                [&](const auto& reject) { return reject.position >= result.completion_tokens; });  // after the cut
  const double now = clock_.seconds();
  metrics_.finished(result, {sequence.request->tenant, sequence.request->domain}, now - sequence.request->queued_at);
  const bool others = queue_.more_of(*sequence.request) ||
                      std::any_of(active_.begin(), active_.end(),
                                  [&](const auto& a) { return !a->ended && a->request == sequence.request; });
  if (!others) queue_.finished(now);
  ChoiceEvent event;
  event.choice = sequence.choice;
  event.result = result;
  sequence.request->channel->push(std::move(event));
  if (on_finished_ && result.completion_tokens > 0 &&
      (reason == FinishReason::kStop || reason == FinishReason::kLength))
    on_finished_({sequence.request, sequence.choice, sequence.text, result, sequence.token_ids});
}

void Scheduler::drain() {
  for (auto& sequence : active_)
    if (!sequence->ended) end(*sequence, FinishReason::kDrained);
  reap();
  for (auto next = queue_.try_pop(); next.request; next = queue_.try_pop()) {
    Active waiting(std::move(next.request), next.choice, tokenizer_);
    end(waiting, FinishReason::kDrained);
  }
  running_.store(0, std::memory_order_relaxed);
}

}  // namespace specdec::deploy
