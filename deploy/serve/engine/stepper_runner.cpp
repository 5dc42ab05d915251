#include "deploy/serve/engine/stepper_runner.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/decode/sampling/randomness.h"

namespace specdec::deploy {

namespace {

// Limit of the tokens per step that draft models may prefill to catch up with their sequences. Like the prefill budget
// for prompts, it bounds the inter-token latency.
constexpr int64_t kDraftReads = 512;

struct Failure {
  std::optional<ErrorKind> kind;  // none: the exception is no Error, for example one of LibTorch
  bool masks_spent = false;
};

Failure failure_of(const std::exception_ptr& exception) {
  try {
    if (exception) std::rethrow_exception(exception);
  } catch (const decode::MasksSpent& e) {
    return {e.kind(), true};
  } catch (const Error& e) {
    return {e.kind()};
  } catch (...) {
  }
  return {};
}

}  // namespace

struct StepperRunner::Running {
  std::string conversation;
  DraftSwap::Pick pick;
  // Mean overlap of pick.draft: the controller starts from it, and observed overlaps are added to it. Null if there is
  // no draft.
  decode::OverlapMean* expected = nullptr;
  decode::Sequence sequence;
  bool draft_failed = false;
};

StepperRunner::StepperRunner(decode::CausalModel& target, decode::CausalModel* draft, StepperRunnerOptions options,
                             const Clock& clock)
    : StepperRunner(target, NamedDraft{"", "", std::shared_ptr<decode::CausalModel>(std::shared_ptr<void>(), draft)},
                    std::move(options), clock) {}

StepperRunner::StepperRunner(decode::CausalModel& target, NamedDraft draft, StepperRunnerOptions options,
                             const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      target_(target, {clock, target_seconds_}),
      drafts_(target, std::move(draft), options_.prior_overlap, costs_, {clock, draft_seconds_}),
      stepper_(target_, nullptr, &costs_, &clock) {}

StepperRunner::~StepperRunner() = default;

SequenceKey StepperRunner::start(const SequenceSpec& spec) {
  const decode::RequestOptions& asked = spec.request.options;
  const bool speculates = asked.speculate && options_.speculation.k != 0;
  const bool coupled = asked.seeded && options_.coupled_seeds;
  DraftSwap::Pick pick = speculates ? drafts_.pick(spec.conversation, asked.tenant) : DraftSwap::Pick();
  decode::OverlapMean* const expected = !pick.draft ? nullptr
                                        : coupled   ? &pick.draft->coupled_overlap
                                                    : &pick.draft->overlap;
  decode::Drafting drafting;
  drafting.verify = coupled ? VerifyRule::kCoupled : options_.speculation.verify;
  if (pick.draft) {
    drafting.model = decode::controller_options(options_.speculation);
    drafting.model->seen = expected;
    drafting.model->schedule = options_.schedule;
    drafting.model->plain_owed = pick.draft->plain_owed;
    drafting.draft = &pick.draft->model;
    drafting.draft_costs = &pick.draft->costs;
  }
  if (pick.shadow) drafting.shadow = &pick.shadow->model;
  if (speculates && options_.speculation.suffix) {
    drafting.text = decode::suffix_controller_options(options_.speculation);
    if (options_.text_max_k > 0) drafting.text->max_k = options_.text_max_k;
    drafting.text->seen = &suffix_overlap_;
  }
  if (mean_answer_ > 0) drafting.expected_tokens = std::max<int64_t>(1, std::llround(mean_answer_));
  auto running = std::unique_ptr<Running>(
      new Running{spec.conversation, std::move(pick), expected, {stepper_, spec.request, drafting}});
  const auto same = running_.find(spec.same_prompt);
  stepper_.open(running->sequence, same == running_.end() ? nullptr : &same->second->sequence);
  running_.emplace(next_key_, std::move(running));
  return next_key_++;
}

PrefillResult StepperRunner::prefill(SequenceKey key, int64_t most) {
  decode::Sequence& s = running_.at(key)->sequence;
  const double started = clock_.seconds(), target_before = target_seconds_;
  if (s.target_id() < 0) stepper_.open(s);
  PrefillResult out;
  out.tokens = stepper_.prefill(s, most);
  out.whole = stepper_.pending_prefill(s) == 0;
  if (out.whole) out.logprobs = s.take_prompt_logprobs();
  prompt_seconds_ += clock_.seconds() - started;
  prompt_target_seconds_ += target_seconds_ - target_before;
  return out;
}

void StepperRunner::preempt(SequenceKey key) { stepper_.close(running_.at(key)->sequence); }

bool StepperRunner::ready(SequenceKey key) { return stepper_.ready(running_.at(key)->sequence); }

// Runs one step. The failure of a single sequence is recorded in that sequence's outcome. If a pass of the target
// throws, all sequences are unchanged. Returns false if the KV caches were full.
bool StepperRunner::run(std::span<decode::Sequence* const> batch) {
  pass_failure_ = nullptr;
  try {
    stepper_.step(batch, kDraftReads);
    // If draft and target run together on the GPU (a round), neither target_ nor the timed drafts are called, so the
    // seconds that the round measured are added here.
    const decode::RoundSeconds& round = stepper_.device_seconds();
    for (const auto& level : round.levels) draft_seconds_ += level.seconds;
    target_seconds_ += round.target;
  } catch (const decode::CacheFull&) {
    return false;
  } catch (const std::exception& e) {
    log(LogLevel::kWarn, std::string("a step failed: ") + e.what());
    pass_failure_ = std::current_exception();
  }
  return true;
}

void StepperRunner::step(std::span<const SequenceKey> batch, std::span<StepResult> results) {
  const double started = clock_.seconds();
  batch_.clear();
  end_trials();
  for (const SequenceKey key : batch) {
    batch_.push_back(&running_.at(key)->sequence);
    batch_.back()->outcome().clear();
  }
  const bool room = run(batch_);
  for (size_t i = 0; i < batch.size(); ++i) {
    decode::Sequence& s = *batch_[i];
    const bool untouched = s.outcome().emitted.empty() && !s.outcome().failure && !s.outcome().mask_late;
    results[i].cache_full = !room || (untouched && batch.size() > 1 && !run({&batch_[i], 1}));
    if (!results[i].cache_full) collect(*running_.at(batch[i]), results[i]);
  }
  explain(batch);
  step_seconds_ += clock_.seconds() - started;
}

// Frees the state that running sequences keep for a draft whose trial has ended.
void StepperRunner::end_trials() {
  for (auto& [key, running] : running_) {
    DraftSwap::Pick& pick = running->pick;
    if (!pick.shadow || pick.shadow->on_trial) continue;
    stepper_.end_shadow(running->sequence);
    pick.shadow.reset();
  }
}

void StepperRunner::collect(Running& running, StepResult& result) {
  decode::Sequence& s = running.sequence;
  std::vector<decode::PositionLogprobs> logprobs = std::exchange(s.outcome().logprobs, {});  // too large to copy
  static_cast<decode::StepOutcome&>(result) = s.outcome();
  result.logprobs = std::move(logprobs);
  if (s.draft_failed() && !std::exchange(running.draft_failed, true)) ++draft_failures_;
  if (result.mask_late) return;
  result.failed = result.failure || result.emitted.empty();
  // A sequence has failed if it has a failure of its own, or if the target's pass threw even for this sequence alone.
  // An exception other than Error counts as a failure of the device only if the target's pass threw it, because it then
  // comes from LibTorch. In a sequence's own failure it may be caused by the sequence's state.
  const std::exception_ptr& cause = result.failure ? result.failure : pass_failure_;
  const ErrorKind unknown = result.failure ? ErrorKind::kInternal : ErrorKind::kDevice;
  const Failure failure = failure_of(cause);
  result.device_failed = result.failed && cause && failure.kind.value_or(unknown) == ErrorKind::kDevice;
  result.masks_spent = result.failure && failure.masks_spent;
  result.no_token_left = result.failure && !result.masks_spent && failure.kind == ErrorKind::kUsage;
  if (result.failed) return;
  if (!s.options().speculate) result.decision.plain = decode::PlainReason::kRequest;
  std::vector<double> kept(static_cast<size_t>(std::min(result.suffix_drafted, result.suffix_accepted + 1)), 1.0);
  if (result.suffix_accepted < result.suffix_drafted) kept.back() = 0;
  suffix_overlap_.add(kept);
  const DraftSwap::Pick& pick = running.pick;
  if (!pick.draft) return;
  running.expected->add(result.observed);
  pick.draft->plain_owed = s.controller()->plain_owed();
  result.draft = pick.draft->draft.id.substr(0, kDraftLabel);
  if (result.shadow_overlaps.empty()) return;
  result.shadow = pick.shadow->draft.id.substr(0, kDraftLabel);
  drafts_.scored(running.conversation, s.options().tenant, pick, result.overlaps, result.shadow_overlaps);
}

// Collects, for each draft, the figures from which its controllers chose K in this step, and logs a change of the
// prevailing K.
void StepperRunner::explain(std::span<const SequenceKey> batch) {
  std::map<DraftSwap::Held*, std::vector<const decode::Sequence*>> drafting;
  for (const SequenceKey key : batch) {
    const Running& running = *running_.at(key);
    if (running.pick.draft && !running.sequence.draft_failed())
      drafting[running.pick.draft.get()].push_back(&running.sequence);
  }
  for (const auto& [held, sequences] : drafting) {
    const decode::KController& any = *sequences.front()->controller();
    DepthEvidence& basis = held->depth_evidence;
    basis.draft = held->draft.id.substr(0, kDraftLabel);
    basis.batch = static_cast<int>(batch.size());
    basis.draft_seconds = held->costs.draft_seconds(basis.batch);
    basis.verify_seconds.clear();
    for (int k = 0; k <= any.max_k(); ++k)
      basis.verify_seconds.push_back(held->costs.verify_seconds(basis.batch, tree_nodes(any.tree(), k)));
    const int64_t seen = held->overlap.observed() + held->coupled_overlap.observed();
    basis.assumed_after = seen < decode::OverlapMean::kAssumed ? std::optional(seen) : std::nullopt;
    basis.overlaps.assign(static_cast<size_t>(any.max_k()), 0);
    std::vector<int> chosen;
    for (const decode::Sequence* const s : sequences) {
      for (size_t i = 0; i < basis.overlaps.size(); ++i)
        basis.overlaps[i] +=
            s->controller()->expected_overlap(static_cast<int>(i)) / static_cast<double>(sequences.size());
      const decode::KDecision& d = s->outcome().decision;
      if (!d.probe &&
          (d.k > 0 || d.plain == decode::PlainReason::kDoesNotPay || d.plain == decode::PlainReason::kSchedule))
        chosen.push_back(d.k);
    }
    held->k_log.chose(chosen);
    basis.k = held->k_log.prevailing();
    if (const auto line = held->k_log.line(basis, clock_.seconds())) log(LogLevel::kInfo, *line);
  }
}

std::vector<DepthEvidence> StepperRunner::depth_evidence() const {
  std::vector<DepthEvidence> out;
  for (const auto& held : drafts_.in_use())
    if (held->depth_evidence.batch > 0) out.push_back(held->depth_evidence);
  return out;
}

void StepperRunner::finish(SequenceKey key) {
  const auto it = running_.find(key);
  if (it == running_.end()) return;
  // Updates the moving mean of answer lengths. The controllers assume that every running answer, however long it is
  // already, continues for this many tokens, and choose a K that pays off within them.
  if (const auto emitted = static_cast<double>(it->second->sequence.counts().emitted); emitted > 0)
    mean_answer_ += (mean_answer_ > 0 ? 0.05 : 1) * (emitted - mean_answer_);
  running_.erase(it);
}

CacheUse StepperRunner::cache_use() const {
  const decode::CacheCounts c = target_.cache_counts();
  return {c.budget_bytes > 0 ? static_cast<double>(c.held_bytes) / static_cast<double>(c.budget_bytes) : 0,
          c.asked_tokens, c.found_tokens};
}

StageSeconds StepperRunner::stage_seconds() const {
  StageSeconds s;
  s.prompt = prompt_seconds_;
  s.draft = draft_seconds_;
  s.verify = target_seconds_ - prompt_target_seconds_;
  s.sample = std::max(0.0, step_seconds_ - s.draft - s.verify);
  s.draft_failures = draft_failures_;
  return s;
}

}  // namespace specdec::deploy
