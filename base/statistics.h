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
double quantile(std::vector<double> x,
                double q);  // linear interpolation, q in [0,1]; throws Error(kInternal) when empty

// Confidence sequence of the mean of values in [0, 1], one value after another (Waudby-Smith & Ramdas 2024, JRSS B 86,
// section 4). For a candidate mean m two capitals start at 1 and grow where m is wrong: up(m) = Π(1 + λ(x − m)) where
// the mean is higher, down(m) = Π(1 − λ'(x − m)) where it is lower; bets λ <= c/m and λ' <= c/(1 − m), c < 1, depend on
// earlier values only. m is refuted from below once up(m) > 2/level, from above once down(m) > 2/level, and stays so.
//
// Each end of the two-sided interval at `level` is the end of a one-sided sequence at level/2, so what is printed (90
// %) and what a gate rests on (one-sided 95 %) are the same numbers: at the true mean up is a non-negative martingale
// that starts at 1, so by Ville's inequality P(ever up > 2/level) <= level/2, and up alone moves the lower end: the
// factors 1 + min(λ, c/m)(x − m) fall in m, so all m below a refuted one are refuted, too. The same for down, and the
// union of both errors is `level`. (The sum ½up + ½down against 1/level would be narrower, but its ends are no
// one-sided sequences: each may err with `level`.)
//
// Valid whenever one looks and stops, as long as each value's mean, given the values before it, is the mean asked for.
struct ConfidenceOptions {
  double level = 0.10;  // of the two-sided interval
  int breaks = 1000;    // candidates are i / breaks
  std::vector<double> stakes = {0.25, 0.5,
                                0.9};  // constant bets λ = stake/m, λ' = stake/(1 − m); the capitals are averaged
  bool plug_in = false;                // … with the predictable plug-in bet of the paper's eq. 26, at level/2
  double truncation = 0.5;             // its c
};
// With stakes {} and the plug-in this is betting_cs(x, alpha=level, breaks=breaks, trunc_scale=truncation,
// running_intersection=True) of confseq 0.0.11; with stakes, the same function given these bets.
class ConfidenceSequence {
 public:
  explicit ConfidenceSequence(const ConfidenceOptions& options = {});  // throws Error(kInternal)
  void observe(double x);                                              // throws Error(kInternal) outside [0, 1]
  const Interval& ci() const { return ci_; }  // [0, 1] before the first value; low > high where the mean moved
  Estimate estimate() const;                  // the sample mean, and ci widened to hold it

 private:
  double capital(const std::vector<double>& of, size_t candidate) const;
  ConfidenceOptions options_;
  double step_, threshold_;
  int64_t n_ = 0;
  double sum_ = 0, regular_sum_ = 0.5, squares_ = 0.25;  // the latter two with one value made up, 1/2 ± 1/2
  std::vector<double> up_, down_;                        // [bet, candidate]
  std::vector<double> bet_up_, bet_down_;                // [bet, candidate] of the constant ones
  Interval ci_{0, 1};
};

// The sequence after all of x. The order of x matters only for the width.
Estimate bounded_mean(std::span<const double> x, double level = 0.10);

// Percentile bootstrap over units (conversations) of a statistic; 0 ≤ unit < num_units. Deterministic for a seed.
Estimate bootstrap(size_t num_units, const std::function<double(std::span<const size_t> units)>& statistic,
                   double level = 0.10, int resamples = 2000, uint64_t seed = 0);

// Upper tail of the chi-square distribution with df degrees of freedom (regularised incomplete gamma).
double chi_square_p_value(double statistic, double df);

}  // namespace specdec
