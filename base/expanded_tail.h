// The tail probability to give to bootstrap() (base/statistics.h) for intervals over few units (conversations).
#pragma once

#include <cmath>
#include <cstddef>

namespace specdec {

// Returns the tail probability of each side to give to bootstrap() for `n` units when the normal quantile of the wanted
// confidence is `z`; 0 for n < 2. Plain percentiles of few units are too narrow, so the tail is made smaller: P(Z < −t
// · √(n / (n − 1))), where Z is standard normal and t is Student's quantile with n − 1 degrees of freedom (Hesterberg
// 2015, The American Statistician 69, section 4.3). t comes from Cornish and Fisher's expansion (Abramowitz and Stegun
// 26.7.5).
inline double expanded_tail(size_t n, double z) {
  if (n < 2) return 0;
  const double df = static_cast<double>(n) - 1, z3 = z * z * z, z5 = z3 * z * z;
  const double t = z + (z3 + z) / (4 * df) + (5 * z5 + 16 * z3 + 3 * z) / (96 * df * df) +
                   (3 * z5 * z * z + 19 * z5 + 17 * z3 - 15 * z) / (384 * df * df * df);
  return std::erfc(t * std::sqrt(static_cast<double>(n) / df) / std::sqrt(2.0)) / 2;
}

}  // namespace specdec
