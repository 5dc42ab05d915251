// The learning curve of a draft: its acceptance after training on n rows, a(n) = limit − scale · n^(−exponent).
// `--forecast` fits the curve to drafts trained on nested samples, and reads the acceptance with all data from the
// curve.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/schema/distill_forecast.h"
#include "base/statistics.h"

namespace specdec::distill {

// Bounds of the exponent. Below kLeastExponent the curve is nearly a straight line in log n; above kMostExponent it is
// flat.
inline constexpr double kLeastExponent = 0.05, kMostExponent = 2;
inline constexpr size_t kLeastSamples = 3;  // a curve has three parameters
// The result marks a forecast as "far" if the whole data has more than this multiple of the largest sample's rows.
inline constexpr double kFarExtrapolation = 16;

struct CurvePoint {
  double rows = 0, acceptance = 0;
  double weight = 1;  // 1 / variance of the acceptance
};
// Fits the curve by weighted least squares with 0 <= limit <= 1, scale >= 0 and kLeastExponent <= exponent <=
// kMostExponent. `points` have ascending rows. Throws Error(kInternal) with fewer than kLeastSamples points.
LearningCurve fit_curve(std::span<const CurvePoint> points);

// The scores of a draft that was trained on a sample of `rows` rows.
struct SampleScores {
  double rows = 0;
  std::vector<double> acceptance;  // for each held-out conversation, summed over its requests
};
// Scores of all samples on the same held-out conversations.
struct CurveInput {
  std::vector<SampleScores> samples;  // ascending rows
  std::vector<double> before;         // acceptance of the initial draft, summed over each conversation's requests
  std::vector<double> requests;       // number of requests of each conversation
  double whole = 0;                   // number of rows of the whole training set
};

struct CurveForecast {
  std::vector<Estimate> measured;      // acceptance of each sample's draft, the mean over requests
  std::optional<LearningCurve> curve;  // empty if no curve can be fitted
  std::string reason;                  // why there is no curve, one sentence; "" if there is one
  // Acceptance after training on the whole data, and its gain over the initial draft, with 95 % intervals. Without a
  // curve the values are NaN, and each interval reaches from the lower end of the largest sample's interval to the
  // highest possible value.
  Estimate acceptance, gain;
  double extrapolation = 1;  // rows of the whole data / rows of the largest sample
};
// Forecasts acceptance and gain. The 95 % intervals come from a bootstrap over conversations, which fits a curve to
// each resample and is widened for few conversations (expanded_tail()). They do not include the variation between
// training seeds. The result has no curve if there are fewer than kLeastSamples samples or `least_conversations`
// conversations, or if the acceptance of the largest sample's draft is not significantly above that of the smallest
// sample's draft.
CurveForecast forecast_acceptance(const CurveInput& input, size_t least_conversations);

// Returns the sizes of the default samples in rows, ascending by factors of four. The largest has up to 16,000 rows,
// but at most a quarter of the data, so that a forecast costs about a third of the run. With little data, which is
// cheap to train on, it may have up to 256 rows instead. Sizes below one row are left out.
std::vector<int64_t> default_samples(int64_t rows);

}  // namespace specdec::distill
