// A draft beside the one that drafts: its overlap with the target at the positions that were reached, where p is known
// already.
#include <string>

#include "base/log.h"
#include "engine/decode/sampler.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

void Stepper::end_shadow(Sequence& s) {
  if (s.shadow_id >= 0) s.shadow->close(s.shadow_id);
  s.shadow_id = -1;
  s.shadow = nullptr;
}

// Before the commit: `tokens` ends at the text, the target's rows hold p (of greedy text the logits), the rules can go
// back.
void Stepper::score_shadow(Slot& slot) {
  Sequence& s = *slot.sequence;
  if (!s.shadow || s.overlaps.empty()) return;
  try {
    ask_shadow(slot);
  } catch (const std::exception& e) {
    log(LogLevel::kWarn, std::string("the draft on trial failed and scores its sequence no longer: ") + e.what());
    s.shadow_overlaps.clear();
    end_shadow(s);
  }
}

void Stepper::ask_shadow(Slot& slot) {
  Sequence& s = *slot.sequence;
  Buffers& b = *buffers_;
  CausalModel& shadow = *s.shadow;
  const std::vector<int32_t>& path = slot.path;
  const auto reached = static_cast<int64_t>(s.overlaps.size());
  if (slot.before + reached - 1 > shadow.max_length()) return;
  if (s.shadow_id < 0) open_cache(shadow, s.shadow_id, s, s.tokens.size() - 1);
  if (!read_up(shadow, s.shadow_id, s.tokens)) return;
  slot.feed.assign(s.tokens.begin() + shadow.length(s.shadow_id), s.tokens.end());
  for (int64_t i = 0; i + 1 < reached; ++i)
    slot.feed.push_back(slot.drafted[static_cast<size_t>(path[static_cast<size_t>(i)])]);
  b.extensions.assign(1, {s.shadow_id, slot.feed, reached});
  shadow.extend(b.extensions, b.draft_rows);
  for (int64_t i = 0; i < reached; ++i) {
    const auto at = static_cast<size_t>(i);
    const int32_t node = i == 0 ? -1 : path[at - 1];
    const std::span<float> q = b.draft_rows.row(i);
    slot.rule_path(node);
    if (s.rules && !s.rules->apply(q)) {
      s.shadow_overlaps.push_back(0);
    } else if (s.sampling.greedy()) {
      const int32_t emitted = at < path.size() ? slot.drafted[static_cast<size_t>(path[at])] : slot.result.next;
      s.shadow_overlaps.push_back(argmax(q) == emitted ? 1 : 0);
    } else {
      distribution(q, s.sampling, q, b.ids);
      s.shadow_overlaps.push_back(overlap(b.target_rows.row(slot.p_row + node + 1), q));
    }
  }
}

}  // namespace specdec::decode
