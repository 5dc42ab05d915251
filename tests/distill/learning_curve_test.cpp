#include "distill/study/learning_curve.h"

#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "base/philox.h"
#include "tests/base/scratch.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

constexpr double kSizes[] = {1000, 4000, 16000};

std::vector<CurvePoint> points_of(const LearningCurve& truth, std::span<const double> sizes) {
  std::vector<CurvePoint> points;
  for (const double n : sizes) points.push_back({n, truth.at(n), 1});
  return points;
}

TEST(LearningCurve, RecoversKnownParametersWithoutNoise) {
  constexpr double kMore[] = {500, 1000, 2000, 8000, 30000};
  for (const double limit : {0.4, 0.8, 1.0})
    for (const double exponent : {0.1, 0.3, 0.5, 1.0, 1.9}) {
      const LearningCurve truth{limit, 0.3 * std::pow(1000, exponent), exponent};
      for (const std::span<const double> sizes : {std::span<const double>(kSizes), std::span<const double>(kMore)}) {
        const LearningCurve fitted = fit_curve(points_of(truth, sizes));
        EXPECT_NEAR(fitted.limit, truth.limit, 1e-3);
        EXPECT_NEAR(fitted.exponent, truth.exponent, 1e-3);
        EXPECT_NEAR(fitted.scale / truth.scale, 1, 1e-3);
        for (const double n : {1000.0, 64000.0, 1e6}) EXPECT_NEAR(fitted.at(n), truth.at(n), 1e-3) << n;
      }
    }
}

TEST(LearningCurve, KeepsItsBounds) {
  const LearningCurve falls = fit_curve(std::vector<CurvePoint>{{1000, 0.6, 1}, {4000, 0.5, 1}, {16000, 0.4, 1}});
  EXPECT_DOUBLE_EQ(falls.scale, 0) << "a curve never falls";
  EXPECT_NEAR(falls.limit, 0.5, 1e-12);
  // These points (number of training rows n, acceptance) lie on a straight line in log n, which exceeds 1 for large n.
  // The fitted curve must stay at or below 1.
  const LearningCurve line = fit_curve(std::vector<CurvePoint>{{1000, 0.5, 1}, {4000, 0.7, 1}, {16000, 0.9, 1}});
  EXPECT_LE(line.limit, 1);
  EXPECT_LT(line.at(1e9), 1);
  EXPECT_GT(line.at(64000), 0.9);
  // The point with the larger weight counts more in the fit.
  const std::vector<CurvePoint> light = {{1000, 0.5, 1}, {4000, 0.6, 1}, {16000, 0.58, 1}};
  std::vector<CurvePoint> heavy = light;
  heavy[1].weight = 100;
  EXPECT_LT(std::abs(fit_curve(heavy).at(4000) - 0.6), std::abs(fit_curve(light).at(4000) - 0.6));
  expect_error(ErrorKind::kInternal, {"three points"},
               [] { fit_curve(std::vector<CurvePoint>{{1, 0, 1}, {2, 0, 1}}); });
}

// Parameters of simulated scores. Acceptance varies between conversations (standard deviation `between`) and, within a
// conversation, between drafts (standard deviation `within`).
struct Simulation {
  LearningCurve truth;
  double whole = 64000, between = 0.15, within = 0.04;
  size_t conversations = 40;
  double start = 0.2;
};

CurveInput simulate(const Simulation& s, uint64_t seed, std::span<const double> sizes = kSizes) {
  PhiloxStream random(seed, 99);
  const auto normal = [&] {
    return std::sqrt(-2 * std::log(1 - random.uniform())) * std::cos(2 * M_PI * random.uniform());
  };
  CurveInput in;
  in.whole = s.whole;
  for (const double n : sizes) in.samples.push_back({n, {}});
  for (size_t i = 0; i < s.conversations; ++i) {
    const double own = s.between * normal();
    const auto requests = static_cast<double>(1 + random.below(3));
    in.requests.push_back(requests);
    in.before.push_back(requests * (s.start + own + s.within * normal()));
    for (SampleScores& sample : in.samples)
      sample.acceptance.push_back(requests * (s.truth.at(sample.rows) + own + s.within * normal()));
  }
  return in;
}

TEST(LearningCurve, IntervalsCoverTheTruth) {
  constexpr int kCases = 300;
  for (const auto& [exponent, whole] : {std::pair(0.15, 256000.0), std::pair(0.4, 64000.0), std::pair(1.0, 128000.0)}) {
    const Simulation s{{0.8, 0.35 * std::pow(1000, exponent), exponent}, whole};
    const double truth = s.truth.at(whole), gain = truth - s.start;
    int covers = 0, covers_gain = 0, curves = 0;
    for (int seed = 0; seed < kCases; ++seed) {
      const CurveForecast f = forecast_acceptance(simulate(s, static_cast<uint64_t>(seed)), 8);
      if (!f.curve) continue;
      ++curves;
      covers += f.acceptance.ci.low <= truth && truth <= f.acceptance.ci.high;
      covers_gain += f.gain.ci.low <= gain && gain <= f.gain.ci.high;
    }
    EXPECT_EQ(curves, kCases);
    EXPECT_GE(covers, 0.9 * curves) << exponent;
    EXPECT_GE(covers_gain, 0.9 * curves) << exponent;
  }
}

// If no curve of acceptance over the number of rows can be fitted, the interval must still contain the acceptance with
// all data.
TEST(LearningCurve, DoesNotExtrapolateNoise) {
  const Simulation flat{{0.6, 0, 1}};
  int curves = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const CurveForecast f = forecast_acceptance(simulate(flat, seed), 8);
    if (f.curve) {
      ++curves;
      continue;
    }
    EXPECT_NE(f.reason.find("noise is larger than the trend"), std::string::npos) << f.reason;
    EXPECT_TRUE(std::isnan(f.acceptance.value) && std::isnan(f.gain.value));
    EXPECT_EQ(f.acceptance.ci.high, 1);
    EXPECT_EQ(f.acceptance.ci.low, f.measured.back().ci.low);
  }
  EXPECT_LE(curves, 8) << "an interval of 95 % is above zero in 2.5 % of all cases";

  const Simulation rising{{0.8, 10, 0.5}};
  CurveForecast f = forecast_acceptance(simulate(rising, 1, std::span(kSizes).first(2)), 8);
  EXPECT_FALSE(f.curve);
  EXPECT_NE(f.reason.find("2 samples"), std::string::npos) << f.reason;
  f = forecast_acceptance(simulate({rising.truth, 64000, 0.15, 0.04, 5}, 1), 8);
  EXPECT_FALSE(f.curve);
  EXPECT_NE(f.reason.find("5 held-out conversations"), std::string::npos) << f.reason;
  EXPECT_FALSE(forecast_acceptance({}, 8).reason.empty());
  f = forecast_acceptance(simulate(rising, 1), 8);
  EXPECT_TRUE(f.curve && f.reason.empty());
  EXPECT_DOUBLE_EQ(f.extrapolation, 4);
}

TEST(LearningCurve, SamplesFitTheData) {
  EXPECT_EQ(default_samples(1'000'000), (std::vector<int64_t>{1000, 4000, 16000}));
  EXPECT_EQ(default_samples(64000), (std::vector<int64_t>{1000, 4000, 16000}));
  EXPECT_EQ(default_samples(16000), (std::vector<int64_t>{250, 1000, 4000}));
  EXPECT_EQ(default_samples(600), (std::vector<int64_t>{16, 64, 256}));
  EXPECT_EQ(default_samples(150), (std::vector<int64_t>{9, 37, 150}));
  EXPECT_EQ(default_samples(10), (std::vector<int64_t>{2, 10}));
  EXPECT_TRUE(default_samples(0).empty());
}

}  // namespace
}  // namespace specdec::distill
