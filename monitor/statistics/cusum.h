// One-sided CUSUM, C ← max(0, C + z − k), with an alarm when C > h. z is in standard deviations, and positive if
// acceptance fell. Used by the detector's early warning (Amber) and by the counter charts.
#pragma once

#include <algorithm>
#include <cmath>

namespace specdec::monitor {

// Returns the mean number of steps to an alarm if z has mean `mean` and standard deviation 1 (Siegmund, Sequential
// Analysis, 1985): (e^{−2Db} + 2Db − 1) / (2D²) with D = mean − k and b = h + 1.166; b² for D = 0.
inline double cusum_run_length(double mean, double k, double h) {
  const double d = mean - k, b = h + 1.166;
  if (std::abs(d) < 1e-6) return b * b;
  return (std::exp(-2 * d * b) + 2 * d * b - 1) / (2 * d * d);
}

// Returns the limit h with which a process of mean 0 raises a false alarm after `run_length` steps on average.
inline double cusum_limit(double k, double run_length) {
  double low = 0, high = 1;
  while (cusum_run_length(0, k, high) < run_length) high *= 2;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (cusum_run_length(0, k, middle) < run_length ? low : high) = middle;
  }
  return high;
}

// Returns the next C, capped at twice the limit h. Without the cap, C would stay above h for long after a drop in
// acceptance has ended.
inline double cusum_step(double cusum, double z, double k, double h) { return std::clamp(cusum + z - k, 0.0, 2 * h); }

}  // namespace specdec::monitor
