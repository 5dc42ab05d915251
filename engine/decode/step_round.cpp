// Runs the step as a round: on the target's device if its RoundRunner supports all sequences, otherwise on the host.
// Before the round, the step has decided the maximum depth of each draft and when drafting stops earlier. After the
// round, the step commits the results.
#include <algorithm>
#include <cmath>
#include <string>

#include "base/log.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

const RoundSeconds& Stepper::device_seconds() const {
  static const RoundSeconds none;
  return buffers_->on_device ? buffers_->seconds : none;
}

void Stepper::fill_slots() {
  Buffers& b = *buffers_;
  b.slots.clear();
  for (SequenceStep& step : b.used()) {
    Sequence& s = *step.sequence;
    const bool is_given = step.given.depth > 0;
    step.from_text = step.given.from_text;
    RoundSlot& slot = b.slots.emplace_back();
    slot.text = s.tokens_;
    slot.target = s.target_id_;
    if (is_given) slot.given = &step.given;
    if (step.drafting || (is_given && !step.from_text)) slot.tree = s.controller_->tree();
    if (step.drafting) {
      slot.drafter = draft_of(s), slot.draft = s.draft_id_, slot.k = step.limit;
      slot.wants_confidences = s.controller_->adaptive();
      if (step.chain()) {
        s.controller_->stop_rule(static_cast<int>(b.num_steps), step.limit, step.stop);
        slot.stop = &step.stop;
      }
    }
    slot.sampling = s.options().sampling;
    slot.rule = step.rule();
    slot.randomness = s.randomness_.get();
    if (s.rules_) slot.processors = &*s.rules_;
    slot.logprobs = s.options().logprobs;
    slot.reject_top = s.options().reject_top;
    slot.wants_rows = s.drafting_.shadow != nullptr;
  }
  if (b.outcomes.size() < b.num_steps) b.outcomes.resize(b.num_steps);
}

// Copies the results of drafting into the step. A sequence whose draft failed continues without a draft.
void Stepper::take_draft(SequenceStep& step, RoundOutcome& round) {
  Sequence& s = *step.sequence;
  step.drafted.swap(round.drafted);
  step.parents.swap(round.parents);
  step.confidences.swap(round.confidences);
  step.depth = 0;
  for (size_t node = 0; node < step.drafted.size(); ++node)
    if (step.drafted[node] != kNotDrafted) step.depth = std::max(step.depth, depth_of(node, step.parents));
  step.from_text = step.from_text && step.depth > 0;
  if (step.chain()) {
    step.drafted.resize(static_cast<size_t>(step.depth));
    step.parents.resize(static_cast<size_t>(step.depth));
    step.confidences.resize(std::min(step.confidences.size(), static_cast<size_t>(step.depth)));
  }
  if (step.drafting) {
    if (s.options().sampling.greedy() && !s.controller_->adaptive())
      std::fill(step.confidences.begin(), step.confidences.end(), 1.0);
    s.outcome_.decision.stopped_early = round.stopped_early;
    step.drafting = false;
  }
  if (round.draft_failure) try {
      std::rethrow_exception(round.draft_failure);
    } catch (const std::exception& e) {
      drop_draft(s, e);
    }
  if (step.limit == 0 || step.depth > 0 || round.cut > 0 || s.outcome_.decision.k == 0) return;
  s.outcome_.decision = {0, s.draft_failed_     ? PlainReason::kDraftFailed
                            : s.draft_rest_ > 0 ? PlainReason::kNoRoom
                                                : PlainReason::kRules};
}

// Scores each position that verification reached: the overlap Σ min(p, q), and the drafted token's ratio min(1, p / q).
// For greedy text, both are 1 for an accepted token and 0 otherwise. If the verification rule accepts with another
// probability than the overlap, the ratio is also 1 or 0. Tokens drafted from the sequence's own text have no overlap.
void Stepper::score_positions(SequenceStep& step, const RoundOutcome& round) {
  Sequence& s = *step.sequence;
  const bool greedy = s.options().sampling.greedy();
  int32_t node = -1;
  for (size_t at = 0; at < std::min(step.path.size() + 1, static_cast<size_t>(step.depth)); ++at) {
    const bool goes_on = at < step.path.size();
    const int32_t child = step.child_of(node, node + 1);
    const auto score = [&](const std::vector<double>& scores) {
      return child < 0 ? 0.0 : scores[static_cast<size_t>(child)];
    };
    // The next token may be a drafted one (HostRound::end_with()), which then counts as accepted.
    const double kept = goes_on || (greedy && step.has_child(node, step.result.next)) ? 1.0 : 0.0;
    if (!step.from_text) s.outcome_.overlaps.push_back(greedy ? kept : score(round.overlaps));
    step.ratios.push_back(!greedy && step.by_overlap() ? score(round.ratios) : kept);
    if (goes_on) node = step.path[at];
  }
}

void Stepper::take_outcomes() {
  Buffers& b = *buffers_;
  for (size_t i = 0; i < b.num_steps; ++i) {
    SequenceStep& step = b.steps[i];
    StepOutcome& out = step.sequence->outcome_;
    RoundOutcome& round = b.outcomes[i];
    take_draft(step, round);
    out.in_round = b.on_device;
    out.failure = round.failure;
    out.mask_late = round.mask_late;
    step.sequence->held_ = std::move(round.held);
    if (out.failure || out.mask_late) continue;
    step.result = round.result;
    path_to(step.result.node, step.parents, step.path);
    score_positions(step, round);
    out.logprobs.swap(round.logprobs);
    out.rejected.swap(round.rejected);
  }
}

// Records the time of a draft pass. `more` is the number of tokens that the pass prefilled beyond the last token of
// each sequence, or 0 if no sequence prefilled more than two tokens. If `more` > 0, the time beyond that of a usual
// draft pass is recorded as prefill.
void Stepper::record_draft(CostModel& costs, double seconds, int64_t more) {
  const int batch = static_cast<int>(buffers_->num_steps);
  if (more == 0) return costs.record_draft(batch, seconds);
  const double usual = costs.draft_seconds(batch);
  costs.record_read(more, std::isfinite(usual) ? seconds - usual : seconds);
}

void Stepper::record_round() {
  Buffers& b = *buffers_;
  if (!costs_ || !b.seconds.measured) return;
  for (const RoundSeconds::Level& level : b.seconds.levels)
    for (size_t i = 0; i < b.num_steps; ++i) {
      if (b.slots[i].drafter != level.drafter) continue;
      if (CostModel* const costs = draft_costs_of(*b.steps[i].sequence))
        record_draft(*costs, level.seconds, level.more);
      break;
    }
  int64_t rows = 0;
  for (SequenceStep& step : b.used()) rows += static_cast<int64_t>(step.drafted.size()) + 1;
  costs_->record_target(static_cast<int>(b.num_steps), static_cast<double>(rows) / static_cast<double>(b.num_steps),
                        b.seconds.target);
}

// Tries to run the planned step as a round on the target's device. Returns false if the step must run on the host
// instead. Reasons are that there is no RoundRunner, that it does not support this step or cannot sample its logits, or
// that the round failed; after a failure, all later steps run on the host. When false is returned, the models have
// drafted nothing.
bool Stepper::run_on_device() {
  Buffers& b = *buffers_;
  if (!rounds_ || !rounds_->takes(b.slots)) return false;
  try {
    return rounds_->run(b.slots, b.outcomes, b.seconds);
  } catch (const std::exception& e) {
    log(LogLevel::kWarn,
        std::string("steps run on the host from now on, since a round on the device failed: ") + e.what());
    rounds_ = nullptr;
    for (SequenceStep& step : b.used()) roll_back(step);
    return false;
  }
}

// If the target's pass throws, restores every sequence and holds its draft for the next step.
void Stepper::run_round() {
  Buffers& b = *buffers_;
  fill_slots();
  b.on_device = run_on_device();
  if (!b.on_device) try {
      host_.run(b.slots, b.outcomes, b.seconds);
    } catch (...) {
      for (size_t i = 0; i < b.num_steps; ++i) {
        take_draft(b.steps[i], b.outcomes[i]);
        roll_back(b.steps[i]);
        b.steps[i].sequence->held_ = std::move(b.outcomes[i].held);
      }
      throw;
    }
  take_outcomes();
  record_round();
}

}  // namespace specdec::decode
