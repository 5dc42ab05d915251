// The allowed values of sampling parameters, for flags, requests and the engine alike. The least positive temperature
// and top-p are float's smallest normal number, because logits and probabilities are computed in float: dividing by a
// smaller number could overflow.
#pragma once

#include <limits>
#include <string>

namespace specdec {

struct NumberRange {
  double low = 0, high = 0;
  bool below_high = false;  // true: `high` itself is not allowed
  bool or_zero = false;     // true: 0 is allowed although it is below `low`

  // Returns false for NaN, because its comparisons are false.
  constexpr bool contains(double x) const {
    return (x >= low && (below_high ? x < high : x <= high)) || (or_zero && x == 0);
  }
  std::string text() const;  // "a number from -2 to 2", "0, or a number from 1.17549e-38 to 2"
};

// 2^-126, the smallest float that is not subnormal.
inline constexpr double kSmallestFloat = std::numeric_limits<float>::min();

inline constexpr NumberRange kTemperatures{.low = kSmallestFloat, .high = 10, .or_zero = true};
inline constexpr NumberRange kTopPs{.low = kSmallestFloat, .high = 1};
inline constexpr NumberRange kMinPs{.low = 0, .high = 1, .below_high = true};
inline constexpr NumberRange kPenalties{.low = -2, .high = 2};  // presence and frequency penalties
// A logit is divided by this penalty; with a penalty of at least 0.01, a logit of 10^36 stays finite.
inline constexpr NumberRange kRepetitionPenalties{.low = 0.01, .high = 2};
inline constexpr NumberRange kLogitBiases{.low = -100, .high = 100};

}  // namespace specdec
