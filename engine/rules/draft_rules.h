// Decides how many children a node of a draft tree gets, and when drafting of a chain stops early (reasons:
// decode/control/controller.h). The host and the CUDA kernels share this source.
#pragma once

#include <cstdint>

#include "base/device_code.h"

namespace specdec::rules {

// A node gets one child per token with at least this probability in q, up to the tree's width, and at least one child.
// The probability that remains after each draw is then large enough for fixed-point sums, and the number of children
// depends on q alone.
inline constexpr float kLeastDrawn = 0x1p-20f;

// AcceptanceTable: the probability that a token is accepted, given the draft's confidence in [0, 1], in bins of equal
// width.
inline constexpr int kConfidenceBins = 8;
struct AcceptanceTable {
  double bins[kConfidenceBins];
};
inline SPECDEC_DEVICE_CODE int bin_of(double confidence) {
  const int bin = static_cast<int>(confidence * kConfidenceBins);
  return bin < 0 ? 0 : bin < kConfidenceBins ? bin : kConfidenceBins - 1;
}

// The limits that decide whether drafting stops after a level. Gains and costs are in tokens: a cost of 1 is the time
// in which plain decoding produces one token.
struct StopLimits {
  double floor;    // if above 0: stop below this confidence, and ignore the other limits
  double overlap;  // expected acceptance probability at the next position
  double shared;   // cost of the next draft pass for the whole batch, shared by the sequences that still draft
  double own;      // cost of verifying one more token; 0 if the target pass has a fixed number of rows
};

// Returns whether drafting stops after `count` tokens. confidence(i) is the draft's confidence in token i, and
// `drafting` is the number of sequences in the last pass. Drafting continues while the gain, overlap · Π P(accepted |
// confidence(i)), exceeds the cost.
template <class F>
SPECDEC_DEVICE_CODE bool stops(const StopLimits& limits, const AcceptanceTable& acceptance, int count,
                               const F& confidence, int drafting) {
  if (limits.floor > 0) return confidence(count - 1) < limits.floor;
  double gain = limits.overlap;
  for (int i = 0; i < count; ++i) gain *= acceptance.bins[bin_of(confidence(i))];
  return gain <= limits.shared / (drafting > 1 ? drafting : 1) + limits.own;
}

}  // namespace specdec::rules
