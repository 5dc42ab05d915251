// The step as one round of a device, which drafts, verifies and draws without asking the host in between. The host
// still decides before the round how deep to draft at most and when to stop earlier, and commits after it.
#include <algorithm>
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
  return seeded && plain && !restored && step.rule() != VerifyRule::kCoupled;
}

void Stepper::fill_slots() {
  Buffers& b = *buffers_;
  b.slots.clear();
  if (b.stops.size() < b.num_steps) b.stops.resize(b.num_steps);
  for (const SequenceStep& step : b.used()) {
    const Sequence& s = *step.sequence;
    const auto& randomness = dynamic_cast<const SeededRandomness&>(*s.randomness_);
    RoundSlot& slot = b.slots.emplace_back();
    slot.text = s.tokens_;
    slot.target = s.target_id_;
    if (step.drafting) {
      slot.drafter = draft_of(s), slot.draft = s.draft_id_, slot.k = step.limit;
      slot.tree = s.controller_->tree();
      StopRule& stop = b.stops[b.slots.size() - 1];
      if (step.chain()) s.controller_->stop_rule(static_cast<int>(b.num_steps), step.limit, stop), slot.stop = &stop;
    }
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
    s.outcome_.in_round = true;
    if (step.drafting) {
      step.drafted = round.drafted;
      step.parents = round.parents;
      step.depth = 0;
      for (size_t node = 0; node < step.drafted.size(); ++node)
        if (step.drafted[node] != kNotDrafted) step.depth = std::max(step.depth, step.depth_of(node));
      if (step.chain()) {
        const auto depth = static_cast<size_t>(step.depth);
        step.drafted.resize(depth);
        step.parents.resize(depth);
        step.confidences.assign(round.confidences.begin(), round.confidences.begin() + step.depth);
        if (greedy && !s.controller_->adaptive()) std::fill(step.confidences.begin(), step.confidences.end(), 1.0);
        s.outcome_.decision.stopped_early = step.depth < step.limit;
      }
      step.drafting = false;
    }
    step.result = round.result;
    step.path_to(step.result.node, step.path);
    int32_t parent = -1;
    for (size_t at = 0; at < std::min(step.path.size() + 1, static_cast<size_t>(step.depth)); ++at) {
      const int32_t child = step.first_child(parent);
      parent = at < step.path.size() ? step.path[at] : -1;
      const double kept = parent >= 0 ? 1.0 : 0.0;
      const auto score = [&](const std::vector<double>& scores) {
        return child < 0 ? 0.0 : scores[static_cast<size_t>(child)];
      };
      if (!step.from_text) s.outcome_.overlaps.push_back(greedy ? kept : score(round.overlaps));
      step.ratios.push_back(!greedy && step.by_overlap() ? score(round.ratios) : kept);
    }
    if (!greedy) dynamic_cast<SeededRandomness&>(*s.randomness_).set_cursors(round.cursors);
  }
}

void Stepper::record_round() {
  Buffers& b = *buffers_;
  if (!costs_ || b.seconds.target <= 0) return;
  int64_t rows = 0;
  for (size_t i = 0; i < b.num_steps; ++i) rows += static_cast<int64_t>(b.outcomes[i].drafted.size()) + 1;
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
  read_texts();
  fill_slots();
  if (!rounds_->takes(b.slots)) return false;
  try {
    if (!rounds_->run(b.slots, b.outcomes, b.seconds)) return false;
  } catch (const std::exception& e) {
    log(LogLevel::kWarn,
        std::string("steps run on the host from now on, since a round on the device failed: ") + e.what());
    rounds_ = nullptr;
    for (SequenceStep& step : b.used()) roll_back(step);
    return false;
  }
  take_outcomes();
  record_round();
  return true;
}

}  // namespace specdec::decode
