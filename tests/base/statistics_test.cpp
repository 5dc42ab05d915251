#include "base/statistics.h"

#include <cmath>

#include "base/philox.h"
#include "tests/base/scratch.h"

namespace specdec {
namespace {

TEST(Statistics, MeanVarianceQuantile) {
  const std::vector<double> x = {4, 1, 3, 2};
  EXPECT_DOUBLE_EQ(mean(x), 2.5);
  EXPECT_DOUBLE_EQ(variance(x), 5.0 / 3);
  EXPECT_EQ(variance(std::vector<double>{7}), 0);
  EXPECT_DOUBLE_EQ(quantile(x, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(x, 1), 4);
  EXPECT_DOUBLE_EQ(quantile(x, 0.5), 2.5);
  EXPECT_DOUBLE_EQ(quantile(x, 0.9), 3.7);
  testing::expect_error(ErrorKind::kInternal, {"quantile"}, [] { quantile({}, 0.5); });
  testing::expect_error(ErrorKind::kInternal, {"quantile"}, [] { quantile({1}, NAN); });
}

// Share of simulated samples whose interval holds the true mean, and the mean width.
struct Coverage {
  double share = 0, width = 0;
};
Coverage simulate(int runs, int n, double level, const std::function<double(PhiloxStream&)>& draw, double truth) {
  Coverage c;
  for (int run = 0; run < runs; ++run) {
    PhiloxStream random(20261121, static_cast<uint64_t>(run));
    std::vector<double> x(static_cast<size_t>(n));
    for (double& v : x) v = draw(random);
    const Estimate e = bounded_mean(x, level);
    c.share += (e.ci.low <= truth && truth <= e.ci.high) / static_cast<double>(runs);
    c.width += (e.ci.high - e.ci.low) / runs;
    EXPECT_NEAR(e.value, mean(x), 1e-12);
  }
  return c;
}

TEST(Statistics, BoundedMeanCoversAtLeastNominally) {
  const auto bernoulli = [](PhiloxStream& r) { return r.uniform() < 0.9 ? 1.0 : 0.0; };
  const auto narrow = [](PhiloxStream& r) { return 0.65 + 0.2 * (r.uniform() + r.uniform() - 1); };
  const auto skewed = [](PhiloxStream& r) { return std::pow(r.uniform(), 4); };
  for (double level : {0.10, 0.40}) {
    EXPECT_GE(simulate(250, 80, level, bernoulli, 0.9).share, 1 - level);
    EXPECT_GE(simulate(250, 80, level, narrow, 0.65).share, 1 - level);
    EXPECT_GE(simulate(250, 80, level, skewed, 0.2).share, 1 - level);
  }
}

TEST(Statistics, BoundedMeanIsSharpEnoughToJudge) {
  // Request-level sd .082; about ±.04 from 100 requests.
  const auto draw = [](PhiloxStream& r) { return 0.65 + 0.2 * (r.uniform() + r.uniform() - 1); };
  EXPECT_LT(simulate(30, 100, 0.10, draw, 0.65).width, 0.10);
  EXPECT_LT(simulate(20, 400, 0.10, draw, 0.65).width, 0.05);
}

TEST(Statistics, BoundedMeanAtTheEdges) {
  const Estimate none = bounded_mean({});
  EXPECT_EQ(none.n, 0);
  EXPECT_EQ(none.ci.low, 0);
  EXPECT_EQ(none.ci.high, 1);
  const Estimate one = bounded_mean(std::vector<double>{0.5});
  EXPECT_LT(one.ci.low, 0.1);
  EXPECT_GT(one.ci.high, 0.9);
  const Estimate ones = bounded_mean(std::vector<double>(200, 1.0));
  EXPECT_EQ(ones.ci.high, 1);
  EXPECT_GT(ones.ci.low, 0.95);
  const Estimate zeros = bounded_mean(std::vector<double>(200, 0.0));
  EXPECT_EQ(zeros.ci.low, 0);
  EXPECT_LT(zeros.ci.high, 0.05);
  const Estimate rounding = bounded_mean(std::vector<double>(10, 1 + 1e-9));
  EXPECT_EQ(rounding.ci.high, 1);
  std::vector<double> drifting(3000, 0.0);
  std::fill(drifting.begin() + 1500, drifting.end(), 1.0);
  const Estimate drift = bounded_mean(drifting);
  EXPECT_LE(drift.ci.low, drift.value);
  EXPECT_GE(drift.ci.high, drift.value);
  testing::expect_error(ErrorKind::kInternal, {"outside [0, 1]"}, [] { bounded_mean(std::vector<double>{0.5, 1.1}); });
  testing::expect_error(ErrorKind::kInternal, {"outside [0, 1]"}, [] { bounded_mean(std::vector<double>{NAN}); });
}

TEST(Statistics, BootstrapIsDeterministicAndNearNormalTheory) {
  std::vector<double> x(200);
  PhiloxStream random(1, 2);
  for (double& v : x) v = random.uniform();
  const auto statistic = [&](std::span<const size_t> units) {
    double sum = 0;
    for (size_t u : units) sum += x[u];
    return sum / static_cast<double>(units.size());
  };
  const Estimate a = bootstrap(x.size(), statistic, 0.10, 1000, 7), b = bootstrap(x.size(), statistic, 0.10, 1000, 7);
  EXPECT_EQ(a.ci.low, b.ci.low);
  EXPECT_EQ(a.ci.high, b.ci.high);
  EXPECT_NE(a.ci.low, bootstrap(x.size(), statistic, 0.10, 1000, 8).ci.low);
  const double half = 1.645 * std::sqrt(variance(x) / 200);
  EXPECT_DOUBLE_EQ(a.value, mean(x));
  EXPECT_NEAR(a.ci.low, mean(x) - half, half * 0.2);
  EXPECT_NEAR(a.ci.high, mean(x) + half, half * 0.2);
  testing::expect_error(ErrorKind::kInternal, {"no units"}, [&] { bootstrap(0, statistic); });
}

TEST(Statistics, ChiSquareTailAgainstClosedForms) {
  for (double x : {0.01, 0.5, 1.0, 3.0, 3.841, 10.0, 40.0, 200.0}) {
    EXPECT_NEAR(chi_square_p_value(x, 1), std::erfc(std::sqrt(x / 2)), 1e-12 + 1e-10 * std::erfc(std::sqrt(x / 2)));
    EXPECT_NEAR(chi_square_p_value(x, 2), std::exp(-x / 2), 1e-13);
    EXPECT_NEAR(chi_square_p_value(x, 4), std::exp(-x / 2) * (1 + x / 2), 1e-13);
    EXPECT_NEAR(chi_square_p_value(x, 6), std::exp(-x / 2) * (1 + x / 2 + x * x / 8), 1e-13);
  }
  EXPECT_NEAR(chi_square_p_value(1000, 1000), 0.494, 0.001);
  EXPECT_EQ(chi_square_p_value(0, 3), 1);
  EXPECT_EQ(chi_square_p_value(INFINITY, 3), 0);
  testing::expect_error(ErrorKind::kInternal, {"chi-square"}, [] { chi_square_p_value(1, 0); });
}

}  // namespace
}  // namespace specdec
