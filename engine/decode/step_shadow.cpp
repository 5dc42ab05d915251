// Scores the shadow draft, a second draft on trial, which does not affect the text. Measures its overlap with the
// target at the reached positions, using the target's distributions p that the round stored in RoundOutcome::rows.
#include <string>

#include "base/log.h"
#include "engine/decode/sampling/sampler.h"
#include "engine/decode/step_state.h"

namespace specdec::decode {

void Stepper::end_shadow(Sequence& s) {
  if (s.shadow_id_ >= 0) s.drafting_.shadow->close(s.shadow_id_);
  s.shadow_id_ = -1;
  s.drafting_.shadow = nullptr;
}

void Stepper::drop_shadow(Sequence& s, const std::exception& reason) {
  log(LogLevel::kWarn, std::string("the draft on trial failed and scores its sequence no longer: ") + reason.what());
  s.outcome_.shadow_overlaps.clear();
  end_shadow(s);
}

// Must run before the commit. Until then tokens_ does not include this step's tokens, the target's rows hold p (logits
// if greedy), and the logits processors can be rewound.
void Stepper::score_shadow(SequenceStep& step) {
  Sequence& s = *step.sequence;
  if (!s.drafting_.shadow || s.outcome_.overlaps.empty()) return;
  const auto reached = static_cast<int64_t>(s.outcome_.overlaps.size());
  step.processors.start(s.rules_ ? &*s.rules_ : nullptr);
  try {
    const bool asked =
        s.drafting_.shadow->reads_states() ? ask_following_shadow(step, reached) : ask_shadow(step, reached);
    if (!asked) s.outcome_.shadow_overlaps.clear();
  } catch (const std::exception& e) {
    drop_shadow(s, e);
  }
}

// Records the overlap at reached position i between the shadow draft, whose logits are `q`, and the target. For greedy
// text, the overlap is 1 if both have the same arg max, else 0. Overwrites q.
void Stepper::score_shadow_at(SequenceStep& step, int64_t i, std::span<float> q) {
  Sequence& s = *step.sequence;
  Buffers& b = *buffers_;
  const auto at = static_cast<size_t>(i);
  const int32_t node = i == 0 ? -1 : step.path[at - 1];
  step.processors.go_to(node, step.drafted, step.parents);
  if (s.rules_ && s.rules_->apply(q) != LogitsProcessorState::Applied::kDone) {
    s.outcome_.shadow_overlaps.push_back(0);
  } else if (s.options().sampling.greedy()) {
    const int32_t emitted = at < step.path.size() ? step.drafted[static_cast<size_t>(step.path[at])] : step.result.next;
    s.outcome_.shadow_overlaps.push_back(argmax(q) == emitted ? 1 : 0);
  } else {
    distribution(q, s.options().sampling, q, b.ids);
    const RoundOutcome& round = b.outcomes[static_cast<size_t>(&step - b.steps.data())];
    const std::span<const float> p = round.rows.subspan(static_cast<size_t>(node + 1) * q.size(), q.size());
    s.outcome_.shadow_overlaps.push_back(overlap(p, q));
  }
}

// Scores the first `reached` positions of the step in one pass. Returns false if the shadow draft cannot read the text
// so far.
bool Stepper::ask_shadow(SequenceStep& step, int64_t reached) {
  Sequence& s = *step.sequence;
  Buffers& b = *buffers_;
  CausalModel& shadow = *s.drafting_.shadow;
  if (step.before + reached - 1 > shadow.max_length()) return false;
  if (s.shadow_id_ < 0) open_cache(shadow, s.shadow_id_, s, s.tokens_.size() - 1);
  if (!read_up(shadow, s.shadow_id_, s.tokens_)) return false;
  b.feed.assign(s.tokens_.begin() + shadow.length(s.shadow_id_), s.tokens_.end());
  for (int64_t i = 0; i + 1 < reached; ++i)
    b.feed.push_back(step.drafted[static_cast<size_t>(step.path[static_cast<size_t>(i)])]);
  b.extensions.assign(1, {s.shadow_id_, b.feed, reached});
  shadow.extend(b.extensions, b.rows);
  for (int64_t i = 0; i < reached; ++i) score_shadow_at(step, i, b.rows.row(i));
  return true;
}

// Scores the first `reached` positions for a shadow draft that reads hidden states. Such a draft reads the text with
// the target's states and each drafted token with its own states. The target already has states of the drafted tokens,
// but the shadow must not use them here, because it would not have them when drafting. The drafted tokens are therefore
// passed as nodes of a tree.
bool Stepper::ask_following_shadow(SequenceStep& step, int64_t reached) {
  Sequence& s = *step.sequence;
  Buffers& b = *buffers_;
  CausalModel& shadow = *s.drafting_.shadow;
  constexpr int32_t kAfterText[] = {-1};
  if (s.shadow_id_ < 0 || s.tokens_.size() < 2 || step.before + reached - 1 > shadow.max_length()) return false;
  if (shadow.follow(s.shadow_id_, s.target_id_) < step.before || !read_up(shadow, s.shadow_id_, s.tokens_))
    return false;
  for (int64_t i = 0; i < reached; ++i) {
    Extension next;
    next.sequence = s.shadow_id_;
    if (i == 0) {
      b.feed.assign(s.tokens_.begin() + shadow.length(s.shadow_id_), s.tokens_.end());
    } else {
      b.feed.assign(1, step.drafted[static_cast<size_t>(step.path[static_cast<size_t>(i) - 1])]);
      if (i == 1) next.parents = kAfterText;
    }
    next.tokens = b.feed;
    b.extensions.assign(1, next);
    shadow.extend(b.extensions, b.rows);
    score_shadow_at(step, i, b.rows.row(0));
  }
  shadow.truncate(s.shadow_id_, step.before);
  return true;
}

}  // namespace specdec::decode
