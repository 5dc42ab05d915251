#include "deploy/serve/schedule/scheduler.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "deploy/serve/schedule/active.h"

namespace specdec::deploy {

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

// Searches the undecided text for stop strings, now that it is known to follow the model's reasoning ("thoughts").
// Returns the text that may be sent.
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
  reap();  // an answer that only echoes its prompt may have ended
  const bool stepped = step();
  reap();
  metrics_.caches(runner_.cache_use());
  running_.store(active_.size(), std::memory_order_relaxed);
  return stepped;
}

// Ends cancelled answers and removes those that have ended.
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

// Runs one step of all sequences in decode. Returns false if the engine can only wait for late grammar masks.
bool Scheduler::step() {
  if (masks_) masks_->begin_step();
  size_t late = 0;
  for (;;) {
    late = collect_batch();
    // Most masks are computed within the time that the engine may wait for them. A sequence whose mask is still late is
    // not stepped.
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

// Collects the sequences in decode whose grammar masks are not late. Returns how many masks are late.
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

// Steps the batch. Returns false if the KV caches had no space for any of its sequences, which are then unchanged.
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
                 runner_.depth_evidence());
  if (stepped < batch_.size()) make_room();
  return true;
}

// Converts the emitted tokens to text and sends it, up to EOS, a stop token, a stop string or max_tokens. Later tokens
// are dropped.
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

// Counts the tokens of a step that belong to the answer.
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
                // True for rejected tokens after the answer's end.
                [&](const auto& reject) { return reject.position >= result.completion_tokens; });
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
