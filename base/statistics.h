// Statistics whose unit is the request (or conversation), never the token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace specdec {

struct Interval {
  double low = 0, high = 0;
};
struct Estimate {
  double value = 0;
  Interval ci;
  int64_t n = 0;
};

double mean(std::span<const double> x);
double variance(std::span<const double> x);  // unbiased; 0 for n < 2
double quantile(std::vector<double> x, double q);  // linear interpolation, q in [0,1]; throws Error(kInternal) when empty

// Mean of bounded values in [0,1] with a two-sided 1 − level interval that holds at any time (betting confidence sequence,
// Waudby-Smith & Ramdas 2024; predictable plug-in bets on a grid of 1/1000). Order of x matters only for the width.
Estimate bounded_mean(std::span<const double> x, double level = 0.10);

// Percentile bootstrap over units (conversations) of a statistic; 0 ≤ unit < num_units. Deterministic for a seed.
Estimate bootstrap(size_t num_units, const std::function<double(std::span<const size_t> units)>& statistic, double level = 0.10,
                   int resamples = 2000, uint64_t seed = 0);

// Upper tail of the chi-square distribution with df degrees of freedom (regularised incomplete gamma).
double chi_square_p_value(double statistic, double df);

}  // namespace specdec
