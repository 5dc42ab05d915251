// Statistics whose unit is the request (or the conversation), never the token.
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
// Returns the quantile q in [0, 1], interpolated linearly. Throws Error(kInternal) if x is empty.
double quantile(std::vector<double> x, double q);

// Confidence sequence of the mean of values in [0, 1] that arrive one by one (Waudby-Smith & Ramdas 2024, JRSS B 86,
// section 4). For each candidate mean m, two products, called capitals, start at 1: up(m) = Π(1 + λ(x − m)) grows if
// the true mean is higher than m, and down(m) = Π(1 − λ'(x − m)) grows if it is lower. The bets λ <= c/m and λ' <= c/(1
// − m), where c < 1 is a constant, depend only on earlier values; every factor is positive. Once up(m) or down(m) has
// exceeded 2/level, m is refuted and stays refuted. The interval reaches from the highest candidate refuted by up (else
// 0) to the lowest one refuted by down (else 1).
//
// Each end of the two-sided interval at `level` is the end of a one-sided sequence at level/2, so the printed interval
// (90 %) and the limit of a gate (one-sided 95 %) are the same numbers. Proof: at the true mean, up is a non-negative
// martingale that starts at 1, so by Ville's inequality P(ever up > 2/level) <= level/2. Only up moves the lower end.
// The factors 1 + min(λ, c/m)(x − m) fall as m grows, so all candidates below a refuted candidate are refuted too. The
// same holds for down, and by the union bound both ends hold with an error of at most `level`.
//
// The interval may be read at any time, and sampling may stop at any time, as long as the mean of each value, given the
// values before it, is the mean to be estimated.
struct ConfidenceOptions {
  double level = 0.10;  // error probability of the two-sided interval
  int breaks = 1000;    // the candidate means are i / breaks for i = 0 … breaks
  // Each stake s in (0, 1) makes two bets that never change, λ = s/m and λ' = s/(1 − m). A candidate's capital is the
  // mean of the capitals of all bets.
  std::vector<double> stakes = {0.25, 0.5, 0.9};
  // If true, adds the paper's "plug-in" bet (eq. 26), which depends on the variance of earlier values.
  bool plug_in = false;
  double truncation = 0.5;  // upper bound of the bet that plug_in adds: truncation/m for λ, truncation/(1 − m) for λ'
};
// Updates the interval after every value. Each stake adds a bet, and so does plug_in. With plug_in = true and stakes =
// {}, the intervals equal those of the Python package confseq 0.0.11: betting_cs(x, alpha=level, breaks=breaks,
// trunc_scale=truncation, running_intersection=True).
class ConfidenceSequence {
 public:
  explicit ConfidenceSequence(const ConfidenceOptions& options = {});  // throws Error(kInternal)
  void observe(double x);                                              // throws Error(kInternal) outside [0, 1]
  const Interval& ci() const { return ci_; }  // [0, 1] before the first value; low > high if all means are refuted
  Estimate estimate() const;                  // the sample mean, and ci widened to contain it

 private:
  double capital(const std::vector<double>& of, size_t candidate) const;
  ConfidenceOptions options_;
  double step_, threshold_;
  int64_t n_ = 0;
  // The sum of the values. regular_sum_ and squares_ estimate the variance for the bet that plug_in adds.
  double sum_ = 0, regular_sum_ = 0.5, squares_ = 0.25;
  std::vector<double> up_, down_;          // the capitals, [bet, candidate]
  std::vector<double> bet_up_, bet_down_;  // the constant bets λ and λ', [bet, candidate]
  Interval ci_{0, 1};
};

// Returns the estimate of a ConfidenceSequence after all of x. The order of x affects only the interval.
Estimate bounded_mean(std::span<const double> x, double level = 0.10);

// Returns a statistic of all units (conversations), 0 ≤ unit < num_units, with its percentile bootstrap interval.
// Deterministic for a given seed. Throws Error(kInternal) without units or resamples.
Estimate bootstrap(size_t num_units, const std::function<double(std::span<const size_t> units)>& statistic,
                   double level = 0.10, int resamples = 2000, uint64_t seed = 0);

// Returns the upper tail of the chi-square distribution with df degrees of freedom (regularised incomplete gamma
// function).
double chi_square_p_value(double statistic, double df);

}  // namespace specdec
