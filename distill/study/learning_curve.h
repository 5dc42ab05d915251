// The learning curve of a draft: its acceptance after training on n rows, a(n) = limit − scale · n^(−exponent).
// `--forecast` fits the curve to drafts trained on nested samples, and reads from it the acceptance with all data.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/schema/distill_forecast.h"
#include "base/statistics.h"

namespace specdec::distill {

// Bounds of the exponent. Below them the curve looks like a straight line in log n; above them it is already flat.
inline constexpr double kLeastExponent = 0.05, kMostExponent = 2;
inline constexpr size_t kLeastSamples = 3;  // the number of the curve's parameters
// An extrapolation to more than this multiple of the largest sample's rows is reported as far.
inline constexpr double kFarExtrapolation = 16;

struct CurvePoint {
  double rows = 0, acceptance = 0;
  double weight = 1;  // 1 / variance of the acceptance
};
// Fits the curve by weighted least squares with 0 <= limit <= 1, scale >= 0 and the exponent within its limits.
// `points` have ascending rows. Throws Error(kInternal) with fewer than kLeastSamples.
LearningCurve fit_curve(std::span<const CurvePoint> points);

// The scores of a draft that was trained on a sample of `rows` rows.
struct SampleScores {
  double rows = 0;
  std::vector<double> acceptance;  // acceptance of each held-out conversation, summed over its requests
};
// Scores of all samples on the same held-out conversations.
struct CurveInput {
  std::vector<SampleScores> samples;  // ascending rows
  std::vector<double> before;         // scores of the initial draft, also summed over each conversation's requests
  std::vector<double> requests;       // number of requests of each conversation
  double whole = 0;                   // rows of the whole training set
};

struct CurveForecast {
  std::vector<Estimate> measured;      // acceptance of each sample's draft, the mean over requests
  std::optional<LearningCurve> curve;  // empty if no curve can be fitted
  std::string reason;                  // why there is no curve, one sentence; "" if there is one
  // Acceptance with the whole data, and its gain over the draft before training, with 95 % intervals. Without a curve
  // the values are NaN, and each interval reaches from the lower end of the largest sample's interval to the highest
  // possible value.
  Estimate acceptance, gain;
  double extrapolation = 1;  // rows of the whole data / rows of the largest sample
};
// Forecasts acceptance and gain. The intervals come from a bootstrap over conversations that fits a curve to each
// resample, at the expanded level of expanded_tail(). They do not include the variation between training seeds. The
// result has no curve with fewer than kLeastSamples samples or `least_conversations` conversations, or if the gain from
// the smallest to the largest sample is not certainly above zero.
CurveForecast forecast_acceptance(const CurveInput& input, size_t least_conversations);

// Returns the sizes of the default samples, ascending by factors of four: up to 16,000 rows, but at most a quarter of
// the data, so that a forecast costs a third of the run. With little data, which is cheap to train on, the largest
// sample may have up to 256 rows instead. Sizes below one row are left out.
std::vector<int64_t> default_samples(int64_t rows);

}  // namespace specdec::distill
