// How many children a node of a tree gets, and when drafting of a chain stops before its last level
// (decode/controller.h says why). One source for the host's steps and for kernels.
#pragma once

#include <cstdint>

#include "base/device_code.h"

namespace specdec::rules {

// A node gets at most as many children as there are tokens with at least this probability in q, and always one. What is
// left to draw from then has enough mass for sums in fixed point, and the number of children depends on q alone.
inline constexpr float kLeastDrawn = 0x1p-20f;

// How likely a token is accepted that the draft proposes with a confidence in [0, 1], by bins of equal width.
inline constexpr int kConfidenceBins = 8;
struct AcceptanceTable {
  double bins[kConfidenceBins];
};
inline SPECDEC_DEVICE_CODE int bin_of(double confidence) {
  const int bin = static_cast<int>(confidence * kConfidenceBins);
  return bin < 0 ? 0 : bin < kConfidenceBins ? bin : kConfidenceBins - 1;
}

// The limits after some level. Gains and costs are in tokens: a cost is the tokens that plain decoding gives meanwhile.
struct StopLimits {
  double floor;    // above 0: stop below this confidence, and at nothing else
  double overlap;  // expected at the next position
  double shared;   // the cost of the next pass for the whole batch, which those share that go on drafting
  double own;      // the cost of verifying one token more
};

// Returns whether drafting stops after `count` tokens of these confidences; confidence(i) is that of token i.
// `drafting` sequences had a part in the last pass. Drafting goes on while (overlap · Π acceptance given confidence)
// exceeds the cost.
template <class F>
SPECDEC_DEVICE_CODE bool stops(const StopLimits& limits, const AcceptanceTable& acceptance, int count,
                               const F& confidence, int drafting) {
  if (limits.floor > 0) return confidence(count - 1) < limits.floor;
  double gain = limits.overlap;
  for (int i = 0; i < count; ++i) gain *= acceptance.bins[bin_of(confidence(i))];
  return gain <= limits.shared / (drafting > 1 ? drafting : 1) + limits.own;
}

}  // namespace specdec::rules
