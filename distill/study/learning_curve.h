// The learning curve of a draft: its acceptance after training on n rows, a(n) = limit − scale · n^(−exponent). It is
// fitted to drafts that were trained on nested samples, and forecasts the draft of the whole data (`--forecast`).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/statistics.h"

namespace specdec::distill {

// The limits of the exponent. A slower curve cannot be told from a straight line in log n, a faster one has ended.
inline constexpr double kLeastExponent = 0.05, kMostExponent = 2;
inline constexpr size_t kLeastSamples = 3;       // as many as the curve has parameters
inline constexpr double kFarExtrapolation = 16;  // times the largest sample

struct LearningCurve {
  double limit = 0, scale = 0, exponent = 1;
  double at(double rows) const;
};

struct CurvePoint {
  double rows = 0, acceptance = 0;
  double weight = 1;  // one over the variance of the acceptance
};
// Fits the curve by weighted least squares with 0 <= limit <= 1, scale >= 0 and the exponent within its limits.
// `points` have ascending rows. Throws Error(kInternal) with fewer than kLeastSamples.
LearningCurve fit_curve(std::span<const CurvePoint> points);

// What a draft reached that was trained on a sample of `rows` rows.
struct SampleScores {
  double rows = 0;
  std::vector<double> acceptance;  // of each held-out conversation, summed over its requests
};
// The same conversations judge all samples.
struct CurveInput {
  std::vector<SampleScores> samples;  // ascending rows
  std::vector<double> before;         // of the draft before training, summed like the others
  std::vector<double> requests;       // number of requests of each conversation
  double whole = 0;                   // rows of the whole training set
};

struct CurveForecast {
  std::vector<Estimate> measured;      // acceptance of each sample's draft, the mean over requests
  std::optional<LearningCurve> curve;  // empty if the samples do not allow a fit
  std::string reason;                  // one sentence, empty if there is a curve
  // Acceptance with the whole data, and its gain over the draft before training, with 95 % intervals. Without a curve
  // the values are NaN, and the intervals reach from the lower end of the largest sample's to the highest possible.
  Estimate acceptance, gain;
  double extrapolation = 1;  // rows of the whole data / rows of the largest sample
};
// The intervals are a bootstrap over conversations, each resample with a fit of its own, at the expanded level of
// expanded_tail(). They do not know how much another seed of the training would change. There is no curve with fewer
// than kLeastSamples samples or `least_conversations` conversations, or if the gain from the smallest to the largest
// sample is not certainly above zero.
CurveForecast forecast_acceptance(const CurveInput& input, size_t least_conversations);

// Returns the sizes of the default samples, ascending by factors of four: up to 16,000 rows, but at most a quarter of
// the data, so that a forecast costs a third of the run. Small data are cheap to train on: there the largest sample has
// up to 256 rows. Sizes below one row are left out.
std::vector<int64_t> default_samples(int64_t rows);

}  // namespace specdec::distill
