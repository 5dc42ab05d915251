#include "engine/decode/round/round.h"

#include <algorithm>

namespace specdec::decode {

bool wants_only_tokens(const RoundSlot& slot) {
  // True if an earlier round drew this draft but could not verify it, because the target's pass threw or the grammar's
  // mask was late. Such a draft's q is on the host.
  const bool drawn = slot.given && !slot.given->from_text;
  return !slot.processors && slot.logprobs < 0 && slot.reject_top == 0 && !slot.wants_rows && !drawn &&
         slot.rule != VerifyRule::kCoupled && dynamic_cast<const SeededRandomness*>(slot.randomness);
}

void RoundOutcome::clear() {
  drafted.clear(), parents.clear();
  confidences.clear(), overlaps.clear(), ratios.clear();
  result = {};
  stopped_early = mask_late = false;
  cut = 0;
  draft_failure = failure = nullptr;
  held.reset();
  rows = {};
  logprobs.clear();
  rejected.reset();
}

void path_to(int32_t node, std::span<const int32_t> parents, std::vector<int32_t>& path) {
  path.clear();
  for (; node >= 0; node = parents[static_cast<size_t>(node)]) path.push_back(node);
  std::reverse(path.begin(), path.end());
}

int depth_of(size_t node, std::span<const int32_t> parents) {
  int depth = 1;
  for (int32_t at = parents[node]; at >= 0; at = parents[static_cast<size_t>(at)]) ++depth;
  return depth;
}

void ProcessorWalk::go_to(int32_t node, std::span<const int32_t> drafted, std::span<const int32_t> parents) {
  if (!state_ || node == node_) return;
  if (node >= 0 && parents[static_cast<size_t>(node)] == node_) {
    state_->push(drafted[static_cast<size_t>(node)]);
  } else {
    state_->rewind();
    path_to(node, parents, path_);
    for (const int32_t on_path : path_) state_->push(drafted[static_cast<size_t>(on_path)]);
  }
  node_ = node;
}

}  // namespace specdec::decode
