// Simulates a thousand gates for each of several dispersions of acceptance between requests. A request has 200 tested
// tokens, and its acceptance is drawn from a beta distribution around the draft's mean. Checks the rates of wrong and
// right passes, and how many requests a gate needs.
#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"
#include "deploy/validate/gate.h"

namespace specdec::deploy {
namespace {

constexpr int kGates = 1000;
constexpr double kFloor = 0.60;

double normal(PhiloxStream& random) {
  return std::sqrt(-2 * std::log(random.uniform())) * std::cos(2 * M_PI * random.uniform());
}

// Draws a gamma variate with shape >= 1 (Marsaglia & Tsang 2000).
double gamma(PhiloxStream& random, double shape) {
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(random), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(random.uniform()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
  }
}

double request(PhiloxStream& random, double mean, double sd) {
  const double size = mean * (1 - mean) / (sd * sd) - 1, a = gamma(random, mean * size),
               b = gamma(random, (1 - mean) * size), p = a / (a + b);
  return std::clamp(p + std::sqrt(p * (1 - p) / 200) * normal(random), 0.0, 1.0);
}

struct Outcome {
  int passed = 0, failed = 0;
  double needed = 0;  // mean number of requests over the gates that reached a decision
};
// Simulates kGates gates. Each scores requests until its verdict is decided, at most `budget` of them.
Outcome simulate(double mean, double sd, int budget) {
  Outcome out;
  for (int gate = 0; gate < kGates; ++gate) {
    PhiloxStream random(20261122, static_cast<uint64_t>(gate));
    AcceptanceRules rules;
    rules.floor = kFloor;
    AcceptanceGate judged(rules);
    for (int i = 0; i < budget && !judged.sure(); ++i) {
      const ScoredRequest scored{"", request(random, mean, sd)};
      judged.observe({&scored, 1});
    }
    ValidationReport report;
    judged.fill(report);
    const Check::State state = side(report.alpha, kFloor);
    out.passed += state == Check::State::kPass;
    out.failed += state == Check::State::kFail;
    if (judged.sure()) out.needed += static_cast<double>(report.requests_needed);
  }
  out.needed /= std::max(1, out.passed + out.failed);
  return out;
}

class Dispersion : public ::testing::TestWithParam<double> {
 protected:
  int budget() const { return GetParam() > 0.12 ? 700 : 400; }
};

// By Ville's inequality, at most 50 of 1,000 gates are expected to pass. By chance it could be 64 (two standard
// deviations more), but in fact far fewer than 50 pass.
TEST_P(Dispersion, ADraftBelowTheFloorPassesInAtMostFivePercent) {
  EXPECT_LE(simulate(kFloor - 1e-4, GetParam(), budget()).passed, 50);
}
TEST_P(Dispersion, ADraftThreePointsAbovePassesInAtLeast95Percent) {
  const Outcome o = simulate(kFloor + 0.03, GetParam(), budget());
  EXPECT_GE(o.passed, 950);
  EXPECT_LE(o.failed, 50);
}
TEST_P(Dispersion, ADraftThreePointsBelowFailsEarly) {
  const Outcome o = simulate(kFloor - 0.03, GetParam(), budget());
  EXPECT_GE(o.failed, 950);
  EXPECT_LT(o.needed, budget() / 2.0);
}
INSTANTIATE_TEST_SUITE_P(Gate, Dispersion, ::testing::Values(0.05, 0.10, 0.15));

}  // namespace
}  // namespace specdec::deploy
