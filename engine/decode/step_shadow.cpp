// Scores the shadow draft, a second draft on trial. Its overlap with the target is measured at the reached positions,
// where p is already known.
#include <string>

#include "base/log.h"
#include "engine/decode/sampler.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

void Stepper::end_shadow(Sequence& s) {
  if (s.shadow_id_ >= 0) s.drafting_.shadow->close(s.shadow_id_);
  s.shadow_id_ = -1;
  s.drafting_.shadow = nullptr;
}

// Runs before the commit. At this point tokens_ does not hold this step's tokens, the target's rows hold p (logits if
// greedy), and the logits processors can still be rewound.
void Stepper::score_shadow(SequenceStep& step) {
  Sequence& s = *step.sequence;
  // By now the target has read what was drafted, so a draft that reads its states would see more than when it drafts.
  if (!s.drafting_.shadow || s.drafting_.shadow->reads_states() || s.outcome_.overlaps.empty()) return;
  try {
    ask_shadow(step);
  } catch (const std::exception& e) {
    log(LogLevel::kWarn, std::string("the draft on trial failed and scores its sequence no longer: ") + e.what());
    s.outcome_.shadow_overlaps.clear();
    end_shadow(s);
  }
}

void Stepper::ask_shadow(SequenceStep& step) {
  Sequence& s = *step.sequence;
  Buffers& b = *buffers_;
  CausalModel& shadow = *s.drafting_.shadow;
  const std::vector<int32_t>& path = step.path;
  const auto reached = static_cast<int64_t>(s.outcome_.overlaps.size());
  if (step.before + reached - 1 > shadow.max_length()) return;
  if (s.shadow_id_ < 0) open_cache(shadow, s.shadow_id_, s, s.tokens_.size() - 1);
  if (!read_up(shadow, s.shadow_id_, s.tokens_)) return;
  step.feed.assign(s.tokens_.begin() + shadow.length(s.shadow_id_), s.tokens_.end());
  for (int64_t i = 0; i + 1 < reached; ++i)
    step.feed.push_back(step.drafted[static_cast<size_t>(path[static_cast<size_t>(i)])]);
  b.extensions.assign(1, {s.shadow_id_, step.feed, reached});
  shadow.extend(b.extensions, b.draft_rows);
  for (int64_t i = 0; i < reached; ++i) {
    const auto at = static_cast<size_t>(i);
    const int32_t node = i == 0 ? -1 : path[at - 1];
    const std::span<float> q = b.draft_rows.row(i);
    step.advance_rules_to(node);
    if (s.rules_ && !s.rules_->apply(q)) {
      s.outcome_.shadow_overlaps.push_back(0);
    } else if (s.options().sampling.greedy()) {
      const int32_t emitted = at < path.size() ? step.drafted[static_cast<size_t>(path[at])] : step.result.next;
      s.outcome_.shadow_overlaps.push_back(argmax(q) == emitted ? 1 : 0);
    } else {
      distribution(q, s.options().sampling, q, b.ids);
      s.outcome_.shadow_overlaps.push_back(overlap(b.target_rows.row(step.p_row + node + 1), q));
    }
  }
}

}  // namespace specdec::decode
