// The step as one round of a device, which drafts, verifies and draws without asking the host in between. The host
// still decides how deep to draft before the round, and commits after it. A round never stops drafting early: its
// passes are queued before their results are known, so stopping would save nothing.
#include <algorithm>
#include <numeric>
#include <string>

#include "base/log.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

const RoundSeconds& Stepper::round_seconds() const { return buffers_->seconds; }

bool Stepper::fits_round(const SequenceStep& step) const {
  const Sequence& s = *step.sequence;
  const bool seeded = dynamic_cast<const SeededRandomness*>(s.randomness_.get()) != nullptr;
  const bool restored = step.depth > 0 && !step.from_text;  // the draft of a step whose target pass threw
  const bool plain = !s.rules_ && s.options().logprobs < 0 && s.options().reject_top == 0 && !s.drafting_.shadow;
  return seeded && plain && !restored && step.chain() && step.rule() != VerifyRule::kCoupled;
}

void Stepper::fill_slots() {
  Buffers& b = *buffers_;
  b.slots.clear();
  for (const SequenceStep& step : b.used()) {
    const Sequence& s = *step.sequence;
    const auto& randomness = dynamic_cast<const SeededRandomness&>(*s.randomness_);
    RoundSlot& slot = b.slots.emplace_back();
    slot.text = s.tokens_;
    slot.target = s.target_id_;
    if (step.drafting) slot.drafter = draft_of(s), slot.draft = s.draft_id_, slot.k = step.limit;
    slot.given = step.drafted;
    slot.sampling = s.options().sampling;
    slot.rule = step.rule();
    slot.seed = randomness.seed();
    slot.cursors = randomness.cursors();
  }
  if (b.outcomes.size() < b.num_steps) b.outcomes.resize(b.num_steps);
}

// Leaves in each step what drafting and verification on the host leave there.
void Stepper::take_outcomes() {
  Buffers& b = *buffers_;
  for (size_t i = 0; i < b.num_steps; ++i) {
    SequenceStep& step = b.steps[i];
    Sequence& s = *step.sequence;
    const RoundOutcome& round = b.outcomes[i];
    const bool greedy = s.options().sampling.greedy();
    if (step.drafting) {
      step.drafted = round.drafted;
      step.parents.resize(step.drafted.size());
      std::iota(step.parents.begin(), step.parents.end(), -1);
      step.confidences = round.confidences;
      if (greedy && !s.controller_->adaptive()) std::fill(step.confidences.begin(), step.confidences.end(), 1.0);
      step.depth = static_cast<int>(step.drafted.size());
      step.drafting = false;
    }
    step.result = round.result;
    step.path_to(step.result.node, step.path);
    for (size_t at = 0; at < std::min(step.path.size() + 1, step.drafted.size()); ++at) {
      const double kept = at < step.path.size() ? 1.0 : 0.0;
      if (!step.from_text) s.outcome_.overlaps.push_back(greedy ? kept : round.overlaps[at]);
      step.ratios.push_back(!greedy && step.by_overlap() ? round.ratios[at] : kept);
    }
    if (!greedy) dynamic_cast<SeededRandomness&>(*s.randomness_).set_cursors(round.cursors);
  }
}

void Stepper::record_round() {
  Buffers& b = *buffers_;
  if (!costs_ || b.seconds.target <= 0) return;
  int64_t rows = 0;
  for (const SequenceStep& step : b.used()) rows += static_cast<int64_t>(step.drafted.size()) + 1;
  for (const RoundSeconds::Level& level : b.seconds.levels)
    for (size_t i = 0; i < b.num_steps; ++i) {
      if (b.slots[i].drafter != level.drafter) continue;
      if (CostModel* const costs = draft_costs_of(*b.steps[i].sequence))
        record_draft(*costs, level.seconds, level.more);
      break;
    }
  costs_->record_target(static_cast<int>(b.num_steps), static_cast<double>(rows) / static_cast<double>(b.num_steps),
                        b.seconds.target);
}

// Runs the planned step as a round. Returns false, with nothing drafted by the models, if the step does not fit.
bool Stepper::run_round() {
  Buffers& b = *buffers_;
  b.seconds = {};
  if (!rounds_ || verify_fn_ != &verify) return false;
  for (const SequenceStep& step : b.used())
    if (!fits_round(step)) return false;
  for (SequenceStep& step : b.used())
    if (step.drafting) catch_up(step);
  fill_slots();
  if (!rounds_->takes(b.slots)) return false;
  try {
    if (!rounds_->run(b.slots, b.outcomes, b.seconds)) return false;
  } catch (const std::exception& e) {
    log(LogLevel::kWarn,
        std::string("steps run on the host from now on, since a round on the device failed: ") + e.what());
    rounds_ = nullptr;
    return false;
  }
  take_outcomes();
  record_round();
  return true;
}

}  // namespace specdec::decode
