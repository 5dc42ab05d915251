#include "base/statistics.h"

#include <cmath>

#include "base/file.h"
#include "base/json.h"
#include "base/philox.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"

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

// Results of simulated intervals: the share that contains the true mean, and the mean width.
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
  // The standard deviation per request is 0.082, which gives an interval of about ±0.04 for 100 requests.
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

// Compares all bounds with betting_cs of confseq 0.0.11, for its default bets and for our constant bets (see
// confidence_sequence_golden.py).
TEST(Statistics, ConfidenceSequenceEqualsBettingCs) {
  const auto path = std::filesystem::path(source_folder()) / "tests/base/golden/confidence_sequence.json";
  const Json cases = Json::parse(read_file(path));
  ASSERT_EQ(cases.size(), 9u);
  for (const Json& c : cases) {
    ConfidenceOptions options;
    options.level = c["level"];
    options.breaks = c["breaks"];
    options.truncation = c["truncation"];
    options.stakes = c["stakes"].get<std::vector<double>>();
    options.plug_in = c["plug_in"];
    ConfidenceSequence sequence(options);
    for (size_t i = 0; i < c["x"].size(); ++i) {
      sequence.observe(c["x"][i]);
      ASSERT_NEAR(sequence.ci().low, c["low"][i].get<double>(), 1e-9) << c["name"] << " after value " << i;
      ASSERT_NEAR(sequence.ci().high, c["high"][i].get<double>(), 1e-9) << c["name"] << " after value " << i;
    }
  }
}

// The printed two-sided interval and the gate's one-sided limit are the same numbers. If the interval is checked after
// every value, each end may err with at most half of the interval's error probability.
TEST(Statistics, EachEndIsAOneSidedSequence) {
  int above = 0, below = 0;
  constexpr int kRuns = 2000;
  for (int run = 0; run < kRuns; ++run) {
    PhiloxStream random(77, static_cast<uint64_t>(run));
    ConfidenceOptions options;
    options.breaks = 100;
    ConfidenceSequence sequence(options);
    for (int i = 0; i < 300; ++i) sequence.observe(random.uniform() < 0.605 ? 1 : 0);
    above += sequence.ci().low > 0.605;
    below += sequence.ci().high < 0.605;
  }
  EXPECT_LE(above, 0.05 * kRuns);
  EXPECT_LE(below, 0.05 * kRuns);
  EXPECT_GT(above + below, 10);  // some intervals miss 0.605, so the two limits above are tested
}

TEST(Statistics, ConfidenceSequenceKeepsItsBounds) {
  ConfidenceSequence sequence;
  EXPECT_EQ(sequence.estimate().n, 0);
  EXPECT_EQ(sequence.ci().high, 1);
  Interval last = sequence.ci();
  PhiloxStream random(4, 4);
  for (int i = 0; i < 5000; ++i) {
    sequence.observe(i < 2500 ? random.uniform() : 0.3 * random.uniform());
    EXPECT_GE(sequence.ci().low, last.low);
    EXPECT_LE(sequence.ci().high, last.high);
    last = sequence.ci();
  }
  const Estimate e = sequence.estimate();  // the mean is outside the interval, so the interval is widened
  EXPECT_LT(e.value, last.low);
  EXPECT_EQ(e.ci.low, e.value);
  EXPECT_EQ(e.n, 5000);
  ConfidenceSequence long_run;  // without limits, its capitals (products over all values) would overflow or underflow
  for (int i = 0; i < 20000; ++i) long_run.observe(0.65);
  EXPECT_GT(long_run.ci().low, 0.64);
  EXPECT_LT(long_run.ci().high, 0.66);
  const auto refused = [](auto change) {
    ConfidenceOptions options;
    change(options);
    testing::expect_error(ErrorKind::kInternal, {"confidence sequence"}, [&] { ConfidenceSequence{options}; });
  };
  refused([](auto& o) { o.level = 0; });
  refused([](auto& o) { o.level = NAN; });
  refused([](auto& o) { o.breaks = 1; });
  refused([](auto& o) { o.stakes = {1}; });
  refused([](auto& o) { o.stakes.clear(); });
  refused([](auto& o) { o.truncation = 1.5; });
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
