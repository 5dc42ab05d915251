#include "distill/study/learning_curve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/expanded_tail.h"
#include "base/format.h"

namespace specdec::distill {

namespace {

constexpr double kNormal95 = 1.959963984540054;  // 0.975 quantile of the standard normal distribution
constexpr int kResamples = 1000;                 // bootstrap resamples, with a curve fitted to each

struct LinearFit {
  double limit = 0, drop = 0;  // a(n) = limit − drop · (n / largest n)^(−exponent)
  double error = 0;            // weighted sum of squared residuals
};

// Fits limit and drop for a given exponent. A bootstrap calls fit() tens of thousands of times, so fit() does not
// allocate memory. The bounds are limit <= 1 and drop >= 0.
class LinearFitter {
 public:
  explicit LinearFitter(std::span<const CurvePoint> points) : points_(points), x_(points.size()) {
    for (const CurvePoint& p : points) log_rows_.push_back(std::log(p.rows / points.back().rows));
  }
  LinearFit fit(double exponent);

 private:
  std::span<const CurvePoint> points_;
  std::vector<double> log_rows_, x_;
};

LinearFit LinearFitter::fit(double exponent) {
  const std::span<const CurvePoint> points = points_;
  const std::vector<double>& log_rows = log_rows_;
  std::vector<double>& x = x_;
  double weights = 0, x_mean = 0, y_mean = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const CurvePoint& p = points[i];
    x[i] = std::exp(-exponent * log_rows[i]);
    weights += p.weight;
    x_mean += p.weight * x[i];
    y_mean += p.weight * p.acceptance;
  }
  x_mean /= weights;
  y_mean /= weights;
  double xx = 0, xy = 0, below_one = 0, x_squares = 0;
  for (size_t i = 0; i < points.size(); ++i) {
    const CurvePoint& p = points[i];
    xx += p.weight * (x[i] - x_mean) * (x[i] - x_mean);
    xy += p.weight * (x[i] - x_mean) * (p.acceptance - y_mean);
    below_one += p.weight * x[i] * (1 - p.acceptance);
    x_squares += p.weight * x[i] * x[i];
  }
  LinearFit fit;
  fit.drop = xx > 0 ? std::max(0.0, -xy / xx) : 0;
  fit.limit = y_mean + fit.drop * x_mean;
  if (fit.limit > 1) {
    fit.limit = 1;
    fit.drop = std::max(0.0, below_one / x_squares);
  }
  for (size_t i = 0; i < points.size(); ++i) {
    const double off = points[i].acceptance - (fit.limit - fit.drop * x[i]);
    fit.error += points[i].weight * off * off;
  }
  return fit;
}

// Returns the exponent whose fit has the smallest error: the best of a logarithmic grid, refined by golden-section
// search.
double best_exponent(LinearFitter& fitter) {
  constexpr int kGrid = 24;
  constexpr double kGolden = 0.6180339887498949;
  const auto exponent = [](double step) {
    return kLeastExponent * std::pow(kMostExponent / kLeastExponent, step / kGrid);
  };
  const auto error = [&](double step) { return fitter.fit(exponent(step)).error; };
  int best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kGrid; ++i)
    if (const double e = error(i); e < least) least = e, best = i;
  double low = std::max(0, best - 1), high = std::min(kGrid, best + 1);
  double a = high - kGolden * (high - low), b = low + kGolden * (high - low), at_a = error(a), at_b = error(b);
  while (high - low > 1e-5) {
    if (at_a <= at_b) {
      high = b, b = a, at_b = at_a;
      a = high - kGolden * (high - low), at_a = error(a);
    } else {
      low = a, a = b, at_a = at_b;
      b = low + kGolden * (high - low), at_b = error(b);
    }
  }
  const double middle = (low + high) / 2;
  return exponent(error(middle) <= least ? middle : best);
}

double ratio_of(std::span<const double> sums, std::span<const double> counts, std::span<const size_t> units) {
  double sum = 0, count = 0;
  for (const size_t u : units) sum += sums[u], count += counts[u];
  return count > 0 ? sum / count : 0;
}

// Returns 1 / variance of a sample's mean acceptance over its conversations, at most 1e12.
double weight_of(const SampleScores& sample, std::span<const double> requests) {
  std::vector<double> means;
  for (size_t i = 0; i < requests.size(); ++i) means.push_back(sample.acceptance[i] / requests[i]);
  return 1 / std::max(1e-12, variance(means) / static_cast<double>(means.size()));
}

std::string why_no_curve(const CurveInput& input, size_t least_conversations, double level) {
  if (input.samples.size() < kLeastSamples)
    return format("%zu samples were trained on, and a curve needs at least %zu", input.samples.size(), kLeastSamples);
  if (input.requests.size() < least_conversations)
    return format("%zu held-out conversations judge the samples, and at least %zu are needed", input.requests.size(),
                  least_conversations);
  const Estimate rise = bootstrap(
      input.requests.size(),
      [&](auto units) {
        return ratio_of(input.samples.back().acceptance, input.requests, units) -
               ratio_of(input.samples.front().acceptance, input.requests, units);
      },
      level);
  if (rise.ci.low > 0) return "";
  return format(
      "from the smallest to the largest sample the acceptance changed by %+.4f, 95 %% interval [%+.4f, %+.4f]: the "
      "noise "
      "is larger than the trend",
      rise.value, rise.ci.low, rise.ci.high);
}

}  // namespace

LearningCurve fit_curve(std::span<const CurvePoint> points) {
  if (points.size() < kLeastSamples) throw Error(ErrorKind::kInternal, "a learning curve needs three points");
  LinearFitter fitter(points);
  const double exponent = best_exponent(fitter);
  const LinearFit fit = fitter.fit(exponent);
  return {fit.limit, fit.drop * std::pow(points.back().rows, exponent), exponent};
}

CurveForecast forecast_acceptance(const CurveInput& input, size_t least_conversations) {
  CurveForecast out;
  const size_t conversations = input.requests.size();
  if (conversations == 0 || input.samples.empty()) {
    out.reason = "no held-out conversation judges the samples";
    return out;
  }
  const double level = std::max(1e-6, 2 * expanded_tail(conversations, kNormal95));
  for (const SampleScores& sample : input.samples)
    out.measured.push_back(bootstrap(
        conversations, [&](auto units) { return ratio_of(sample.acceptance, input.requests, units); }, level));
  out.extrapolation = input.whole / input.samples.back().rows;
  out.reason = why_no_curve(input, least_conversations, level);
  std::vector<CurvePoint> points;
  for (const SampleScores& sample : input.samples)
    points.push_back({sample.rows, 0, weight_of(sample, input.requests)});
  const auto curve_of = [&](std::span<const size_t> units) {
    for (size_t i = 0; i < points.size(); ++i)
      points[i].acceptance = ratio_of(input.samples[i].acceptance, input.requests, units);
    return fit_curve(points);
  };
  const auto before = [&](std::span<const size_t> units) { return ratio_of(input.before, input.requests, units); };
  if (!out.reason.empty()) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const Estimate start = bootstrap(conversations, before, level);
    out.acceptance = {kNone, {out.measured.back().ci.low, 1}, static_cast<int64_t>(conversations)};
    out.gain = {kNone, {out.measured.back().ci.low - start.ci.high, 1 - start.ci.low}, out.acceptance.n};
    return out;
  }
  std::vector<size_t> all(conversations);
  for (size_t i = 0; i < conversations; ++i) all[i] = i;
  out.curve = curve_of(all);
  const auto whole = [&](std::span<const size_t> units) {
    return std::clamp(curve_of(units).at(input.whole), 0.0, 1.0);
  };
  out.acceptance = bootstrap(conversations, whole, level, kResamples);
  out.gain = bootstrap(conversations, [&](auto units) { return whole(units) - before(units); }, level, kResamples);
  return out;
}

std::vector<int64_t> default_samples(int64_t rows) {
  constexpr int64_t kMost = 16000, kCheap = 256;
  const int64_t largest = std::min({kMost, std::max(rows / 4, std::min(rows, kCheap)), rows});
  std::vector<int64_t> sizes;
  for (const int64_t part : {16, 4, 1})
    if (largest / part > 0) sizes.push_back(largest / part);
  return sizes;
}

}  // namespace specdec::distill
