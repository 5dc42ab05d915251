#include "deploy/serve/scheduler.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace specdec::deploy {

namespace {

constexpr int kRejectTop = 16;  // likeliest tokens of the target at a rejected position

}  // namespace

struct Scheduler::Active {
  Active(std::shared_ptr<const GenerationRequest> r, size_t c, const text::Tokenizer& tokenizer)
      : request(std::move(r)), choice(c), decoder(tokenizer), stop(request->stop) {}

  std::shared_ptr<const GenerationRequest> request;
  size_t choice;
  SequenceKey key = -1;
  text::IncrementalDecoder decoder;
  StopMatcher stop;
  std::string text;       // everything sent
  ChoiceResult result;
  bool ended = false;
};

Scheduler::Scheduler(SchedulerOptions options, StepRunner& runner, RequestQueue& queue, const text::Tokenizer& tokenizer, Metrics& metrics,
                     const Clock& clock, std::function<void(const FinishedAnswer&)> on_finished)
    : options_(std::move(options)), runner_(runner), queue_(queue), tokenizer_(tokenizer), metrics_(metrics), clock_(clock),
      on_finished_(std::move(on_finished)) {}

Scheduler::~Scheduler() = default;

void Scheduler::run() {
  while (!aborted_.load()) {
    if (turn()) continue;
    if (queue_.closed() && queue_.size() == 0) return;
    queue_.wait();
  }
  drain();
}

void Scheduler::stop_now() {
  aborted_.store(true);
  queue_.close();
}

bool Scheduler::turn() {
  leave();
  join();
  running_.store(active_.size(), std::memory_order_relaxed);
  if (active_.empty()) return false;
  leave();  // an echo without an answer has ended already
  if (!active_.empty()) step();
  leave();
  running_.store(active_.size(), std::memory_order_relaxed);
  return true;
}

// Ends what was cancelled and lets go of what has ended.
void Scheduler::leave() {
  for (auto& sequence : active_)
    if (!sequence->ended && sequence->request->channel->cancelled()) end(*sequence, FinishReason::kCancelled);
  std::erase_if(active_, [this](const auto& sequence) {
    if (!sequence->ended) return false;
    try {
      runner_.finish(sequence->key);
    } catch (const std::exception& e) {
      log(LogLevel::kError, sequence->request->id + ": closing a sequence: " + e.what());
    }
    return true;
  });
}

void Scheduler::join() {
  int64_t budget = options_.prompt_budget_tokens;
  const bool idle = active_.empty();
  bool first = true;
  while (active_.size() < options_.max_batch) {
    if (!joining_) {
      joining_ = queue_.try_pop();
      next_choice_ = 0;
      if (!joining_) return;
    }
    if (joining_->channel->cancelled()) {
      joining_ = nullptr;
      continue;
    }
    const bool shared = sibling(*joining_, next_choice_) != nullptr;
    const auto prompt_tokens = shared ? 0 : static_cast<int64_t>(joining_->prompts[next_choice_ / static_cast<size_t>(joining_->n)].size());
    // Others must not wait for more than one long prompt between two of their tokens.
    if (!idle && !first && prompt_tokens > budget) return;
    budget -= prompt_tokens;
    first = false;
    auto sequence = std::make_unique<Active>(joining_, next_choice_, tokenizer_);
    if (++next_choice_ == joining_->choices()) joining_ = nullptr;
    if (start(std::move(sequence))) metrics_.started(prompt_tokens);
  }
}

// A running answer to the same prompt of the same request, whose prompt need not be run again. None where the prompt is scored.
const Scheduler::Active* Scheduler::sibling(const GenerationRequest& request, size_t choice) const {
  if (request.echo && request.logprobs >= 0) return nullptr;
  const size_t n = static_cast<size_t>(request.n);
  for (const auto& active : active_)
    if (active->request.get() == &request && active->choice / n == choice / n && !active->ended) return active.get();
  return nullptr;
}

bool Scheduler::start(std::unique_ptr<Active> sequence) {
  const GenerationRequest& request = *sequence->request;
  const size_t n = static_cast<size_t>(request.n);
  SequenceSpec spec;
  spec.prompt = request.prompts[sequence->choice / n];
  spec.max_tokens = request.max_tokens;
  spec.sampling = request.sampling;
  spec.seed = choice_seed(request.seed, sequence->choice % n);
  spec.seeded = request.seeded;
  spec.rules = request.rules;
  spec.logprobs = request.logprobs;
  spec.speculate = request.speculate;
  spec.conversation = request.conversation_id();
  spec.reject_top = share_place("rejects " + spec.conversation) < options_.reject_share ? kRejectTop : 0;
  if (const Active* same = sibling(request, sequence->choice)) spec.same_prompt = same->key;
  ChoiceEvent echoed;
  if (request.echo && request.logprobs >= 0) spec.prompt_logprobs = &echoed.logprobs;
  try {
    sequence->key = runner_.start(spec);
  } catch (const std::exception& e) {
    log(LogLevel::kError, request.id + ": starting a sequence: " + e.what());
    failures_.fetch_add(1, std::memory_order_relaxed);
    end(*sequence, FinishReason::kFailed);
    return false;
  }
  if (request.echo) echo(*sequence, std::move(echoed));
  active_.push_back(std::move(sequence));
  return true;
}

// The prompt as the beginning of the text. Its first token has nothing before it, so no log-probability.
void Scheduler::echo(Active& sequence, ChoiceEvent event) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
  const GenerationRequest& request = *sequence.request;
  const size_t prompt = sequence.choice / static_cast<size_t>(request.n);
  event.choice = sequence.choice;
  event.echo = true;
  event.text = request.texts[prompt];
  if (request.logprobs >= 0) event.logprobs.insert(event.logprobs.begin(), decode::PositionLogprobs{{request.prompts[prompt].front(), kNone}, {}});
  request.channel->push(std::move(event));
  if (request.max_tokens == 0) end(sequence, FinishReason::kLength);
}

void Scheduler::step() {
  keys_.clear();
  for (const auto& sequence : active_) keys_.push_back(sequence->key);
  results_.assign(active_.size(), {});
  try {
    runner_.step(keys_, results_);
  } catch (const std::exception& e) {
    log(LogLevel::kError, std::string("a step failed: ") + e.what());
    for (StepResult& result : results_) result.failed = true;
  }
  int64_t drafted = 0, failed = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    if (results_[i].no_token_left) {
      end(*active_[i], FinishReason::kNoTokenLeft);
      continue;
    }
    if (results_[i].failed || results_[i].emitted.empty()) {
      ++failed;
      end(*active_[i], FinishReason::kFailed);
      continue;
    }
    drafted += results_[i].drafted;
    metrics_.step(results_[i]);
    try {
      deliver(*active_[i], results_[i]);
    } catch (const std::exception& e) {
      log(LogLevel::kError, active_[i]->request->id + ": turning tokens into text: " + e.what());
      if (!active_[i]->ended) end(*active_[i], FinishReason::kFailed);
    }
  }
  if (failed < static_cast<int64_t>(active_.size()))
    failures_.store(0, std::memory_order_relaxed);
  else
    failures_.fetch_add(failed, std::memory_order_relaxed);
  metrics_.batch(active_.size(), static_cast<double>(drafted) / static_cast<double>(active_.size()), runner_.stage_seconds());
}

// Emitted tokens → text, up to EOS, a stop string or max_tokens; what a step emitted behind that point is dropped.
void Scheduler::deliver(Active& sequence, const StepResult& result) {
  const GenerationRequest& request = *sequence.request;
  ChoiceResult& so_far = sequence.result;
  if (so_far.completion_tokens == 0) metrics_.first_token(clock_.seconds() - request.queued_at);
  so_far.draft = result.draft;
  so_far.counts.add_step(result.drafted, result.accepted, result.overlaps);
  if (result.drafted > 0) {
    const size_t j = static_cast<size_t>(result.accepted);
    if (so_far.accepted_histogram.size() <= static_cast<size_t>(result.drafted)) so_far.accepted_histogram.resize(static_cast<size_t>(result.drafted) + 1);
    ++so_far.accepted_histogram[j];
  }
  if (result.rejected && so_far.rejects.size() < RejectRecord::kMaxRejects) {
    const decode::PositionLogprobs& at = *result.rejected;
    const auto position = so_far.completion_tokens + static_cast<int64_t>(result.emitted.size()) - 1;
    RejectRecord::Reject& reject = so_far.rejects.emplace_back(RejectRecord::Reject{position, at.token.id, result.emitted.back(), at.token.logprob, {}});
    for (const decode::TokenLogprob& t : at.top) reject.top.emplace_back(t.id, t.logprob);
  }
  ChoiceEvent event;
  event.choice = sequence.choice;
  std::optional<FinishReason> reason;
  for (size_t i = 0; i < result.emitted.size(); ++i) {
    const int32_t token = result.emitted[i];
    event.token_ids.push_back(token);
    if (i < result.logprobs.size()) event.logprobs.push_back(result.logprobs[i]);
    ++so_far.completion_tokens;
    const bool eos = !request.ignore_eos && std::find(options_.eos_ids.begin(), options_.eos_ids.end(), token) != options_.eos_ids.end();
    if (!eos) event.text += sequence.stop.push(sequence.decoder.push(token));
    if (eos || sequence.stop.matched()) reason = FinishReason::kStop;
    if (!reason && so_far.completion_tokens >= request.max_tokens) reason = FinishReason::kLength;
    if (reason) break;
  }
  if (reason && !sequence.stop.matched()) {
    event.text += sequence.stop.push(sequence.decoder.finish());
    if (sequence.stop.matched()) reason = FinishReason::kStop;
    event.text += sequence.stop.finish();
  }
  sequence.text += event.text;
  request.channel->push(std::move(event));
  if (reason) end(sequence, *reason);
}

void Scheduler::end(Active& sequence, FinishReason reason) {
  sequence.ended = true;
  ChoiceResult& result = sequence.result;
  result.reason = reason;
  result.counts.emitted = result.completion_tokens;
  std::erase_if(result.rejects, [&](const auto& reject) { return reject.position >= result.completion_tokens; });  // behind the cut
  metrics_.finished(result, clock_.seconds() - sequence.request->queued_at);
  ChoiceEvent event;
  event.choice = sequence.choice;
  event.result = result;
  sequence.request->channel->push(std::move(event));
  if (on_finished_ && result.completion_tokens > 0 && (reason == FinishReason::kStop || reason == FinishReason::kLength))
    on_finished_({sequence.request, sequence.choice, sequence.text, result});
}

void Scheduler::drain() {
  for (auto& sequence : active_)
    if (!sequence->ended) end(*sequence, FinishReason::kDrained);
  leave();
  if (!joining_) next_choice_ = 0;
  for (auto request = joining_ ? std::exchange(joining_, nullptr) : queue_.try_pop(); request; request = queue_.try_pop()) {
    for (; next_choice_ < request->choices(); ++next_choice_) {
      Active waiting(request, next_choice_, tokenizer_);
      end(waiting, FinishReason::kDrained);
    }
    next_choice_ = 0;
  }
  running_.store(0, std::memory_order_relaxed);
}

}  // namespace specdec::deploy
