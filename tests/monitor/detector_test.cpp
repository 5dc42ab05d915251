#include "monitor/statistics/detector.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "monitor/statistics/cusum.h"
#include "tests/monitor/traffic.h"

namespace specdec::monitor {
namespace {

const double kLevel = std::log(1e5);

TEST(Detector, StaysQuietInControl) {
  for (const double sd : {0.05, 0.10, 0.15}) {
    Detector detector(flat(0.70));
    Traffic traffic(static_cast<uint64_t>(sd * 100));
    for (int i = 0; i < 20000; ++i) detector.add("", traffic.request(0.70, sd), i);
    EXPECT_LT(detector.peak().log_evidence, kLevel) << "sd " << sd;
    EXPECT_EQ(detector.pooled().total.n, 20000);
    EXPECT_NEAR(detector.within_part(false), 0, 0.005);
  }
}

TEST(Detector, NamesTheGuiltyStratum) {
  const std::map<std::string, StratumBaseline> baselines = {
      {"chat", flat_baseline(0.80, 0.55)}, {"code", flat_baseline(0.70, 0.15)}, {"maths", flat_baseline(0.60, 0.30)}};
  double sum = 0;
  const int runs = 20;
  int near = 0;
  for (int run = 0; run < runs; ++run) {
    Detector detector(by_domain(baselines));
    Traffic traffic(900 + static_cast<uint64_t>(run));
    int64_t n = 0, changed = 400;
    while (n < 5000 && detector.peak().log_evidence < kLevel) {
      const double u = traffic.random.uniform();
      const std::string name = u < 0.55 ? "chat" : u < 0.70 ? "code" : "maths";
      const double mean = name == "chat" ? 0.80 : name == "code" ? (n < changed ? 0.70 : 0.60) : 0.60;
      detector.add(name, traffic.request(mean), ++n);
    }
    EXPECT_EQ(detector.peak().stratum, "code") << "run " << run;
    near += std::abs(detector.peak().change_time - changed) < 200;
    EXPECT_LT(detector.peak().since_change.x / static_cast<double>(detector.peak().since_change.n), 0.65);
    sum += static_cast<double>(n - changed);
  }
  EXPECT_LE(sum / runs, 600);
  EXPECT_GE(near, 15) << "the change point, from some 60 quiet requests of the stratum";
}

TEST(Detector, AnAlarmIsNotTakenBack) {
  Detector detector(flat(0.70));
  Traffic traffic(1);
  for (int i = 0; i < 200; ++i) detector.add("", traffic.request(0.50), i);
  for (int i = 0; i < 3000; ++i) detector.add("", traffic.request(0.95, 0.02), i);
  EXPECT_LT(detector.log_evidence(), kLevel);
  EXPECT_GE(detector.peak().log_evidence, kLevel);
  EXPECT_EQ(detector.peak().requests, 200);
}

TEST(Detector, PartsSinceTheChangeAreNotDilutedByTheQuietTime) {
  Detector detector(flat(0.70));
  Traffic traffic(4);
  for (int i = 0; i < 5000; ++i) detector.add("", traffic.request(0.70), i);
  for (int i = 0; i < 200; ++i) detector.add("", traffic.request(0.60), i);
  EXPECT_NEAR(detector.within_part(true), -0.10, 0.03);
  EXPECT_GT(detector.within_part(false), -0.02);
}

TEST(Detector, ToleranceFollowsTheRule) {
  EXPECT_DOUBLE_EQ(tolerance({{0.7}, 0.7, 0.001, 1}, 0), 0.01);
  EXPECT_DOUBLE_EQ(tolerance({{0.7}, 0.7, 0.02, 1}, 0), 0.04);
  EXPECT_DOUBLE_EQ(tolerance({{0.7}, 0.7, 0.02, 1}, 0.04), 0.06);
}

TEST(Detector, ShortAndEmptyRequestsAreNotWatched) {
  Detector detector(flat(0.70));
  Traffic traffic(1);
  EXPECT_FALSE(detector.add("", traffic.request(0.7, 0.1, 7), 0));
  EXPECT_TRUE(detector.add("", traffic.request(0.7, 0.1, 8), 0));
  EXPECT_FALSE(detector.add("", AcceptanceCounts{}, 0));
}

TEST(Detector, UnknownStrataUseTheBaselineOfEverything) {
  Detector with(by_domain({{"code", flat_baseline(0.6)}, {"", flat_baseline(0.7, 0)}})),
      without(by_domain({{"code", flat_baseline(0.6)}}));
  Traffic traffic(1);
  EXPECT_TRUE(with.add("poems", traffic.request(0.7), 0));
  EXPECT_EQ(with.strata().at("").total.n, 1);
  EXPECT_FALSE(without.add("poems", traffic.request(0.7), 0));
}

TEST(Detector, ImpossibleEvidenceNeitherOverflowsNorStops) {
  Detector detector(flat(1.0));
  AcceptanceCounts dead;
  dead.reached_at = {1000};
  dead.overlap_sum_at = {0};
  for (int i = 0; i < 20000; ++i) detector.add("", dead, i);
  EXPECT_TRUE(std::isfinite(detector.log_evidence()));
  EXPECT_GT(detector.log_evidence(), std::log(1e299));
}

// After a restart from the saved state the detector continues bit-identically.
TEST(Detector, StateSurvivesARestartBitForBit) {
  const std::map<std::string, StratumBaseline> baselines = {
      {"a", flat_baseline(0.8, 0.5)}, {"b", flat_baseline(0.6, 0.5)}, {"", flat_baseline(0.7, 0)}};
  Detector whole(by_domain(baselines)), first(by_domain(baselines));
  Traffic traffic(11);
  std::vector<std::pair<std::string, AcceptanceCounts>> stream;
  for (int i = 0; i < 700; ++i)
    stream.emplace_back(i % 3 ? "a" : i % 2 ? "b" : "c", traffic.request(i < 400 ? 0.72 : 0.55));
  for (size_t i = 0; i < stream.size(); ++i) whole.add(stream[i].first, stream[i].second, static_cast<int64_t>(i));
  for (size_t i = 0; i < 350; ++i) first.add(stream[i].first, stream[i].second, static_cast<int64_t>(i));
  Detector second(by_domain(baselines));
  second.restore(parse_json(first.state().dump(), "test"), "test");
  EXPECT_EQ(second.state(), first.state());
  for (size_t i = 350; i < stream.size(); ++i) second.add(stream[i].first, stream[i].second, static_cast<int64_t>(i));
  EXPECT_EQ(second.state().dump(), whole.state().dump());
  EXPECT_EQ(second.log_evidence(), whole.log_evidence());
}

TEST(Detector, AnotherBaselinesStateIsLeft) {
  Detector detector(flat(0.7)), other(flat(0.6));
  Traffic traffic(1);
  for (int i = 0; i < 50; ++i) detector.add("", traffic.request(0.7), i);
  EXPECT_FALSE(other.restore(detector.state(), "state"));
  EXPECT_EQ(other.pooled().total.n, 0);
  EXPECT_FALSE(other.restore(Json{{"schema", "specdec.detector/1"}}, "state"));
  EXPECT_TRUE(Detector(flat(0.7)).restore(detector.state(), "state"));
}

// The change point is the request from which on the product of the factors 1 + λ (b − x) is largest, over all λ and the
// whole past. The test computes the product from each request on and expects the same change point.
TEST(Detector, TheChangePointIsExact) {
  Traffic traffic(21);
  std::vector<RequestEvidence> seen;
  ShiryaevRoberts stream;
  StratumBaseline baseline = flat_baseline(0.70);
  for (int i = 0; i < 1500; ++i) {
    seen.push_back(observe(traffic.request(i < 900 ? 0.70 : 0.66), baseline, 0.01));
    stream.add(seen.back(), 0.70, i);
  }
  double best = -1e300;
  size_t start = 0;
  for (const double bet : {0.25, 0.5, 0.9}) {
    double sum = 0;
    for (size_t k = seen.size(); k-- > 0;) {
      sum += std::log1p(bet / (1 - seen[k].b) * (seen[k].b - seen[k].x));
      if (sum > best) best = sum, start = k;
    }
  }
  EXPECT_EQ(stream.since_change().n, static_cast<int64_t>(seen.size() - start));
  EXPECT_EQ(stream.change().time, static_cast<int64_t>(start) - 1);
  EXPECT_NEAR(static_cast<double>(start), 900, 150);
}

TEST(Detector, TheMixIsTestedAndTriggersNothing) {
  Baseline baseline = by_domain({{"easy", flat_baseline(0.80, 0.5)}, {"hard", flat_baseline(0.60, 0.5)}});
  for (auto& [name, b] : baseline.strata) b.n = 5000;
  Detector same(baseline), moved(baseline);
  EXPECT_EQ(same.mix_test().p_value, 1);
  Traffic traffic(6);
  for (int i = 0; i < 5000; ++i) {
    const bool easy = traffic.random.uniform() < 0.5;
    same.add(easy ? "easy" : "hard", traffic.request(easy ? 0.8 : 0.6), i);
    // From request 1,000 on, `moved` gets easy and hard requests in other proportions. At the end of the test, the
    // first 1,000 requests are no longer among the newest requests that it compares with the baseline.
    const bool rare = i < 1000 ? easy : traffic.random.uniform() < 0.3;
    moved.add(rare ? "easy" : "hard", traffic.request(rare ? 0.8 : 0.6), i);
  }
  EXPECT_GT(same.mix_test().p_value, 0.001);
  EXPECT_LT(same.mix_test().psi, 0.01);
  EXPECT_EQ(same.mix_test().requests, 3000);
  EXPECT_LT(moved.mix_test().p_value, 1e-20);
  EXPECT_NEAR(moved.mix_test().psi, -0.2 * std::log(0.6) + 0.2 * std::log(1.4), 0.02);
  EXPECT_LT(moved.peak().log_evidence, kLevel);
}

TEST(Cusum, LimitsAreSiegmunds) {
  // Each row: the CUSUM's k; its limit h for 1e5 steps to a false alarm; the number of steps to an alarm if z has the
  // mean 2k.
  for (const auto& [k, h, delay] : {std::array<double, 3>{.10, 36.9, 330},
                                    {.125, 31.0, 226},
                                    {.15, 26.9, 165},
                                    {.20, 21.3, 100},
                                    {.25, 17.7, 67},
                                    {.50, 9.65, 20}}) {
    EXPECT_NEAR(cusum_limit(k, 1e5), h, 0.1);
    EXPECT_NEAR(cusum_run_length(2 * k, k, h), delay, 0.02 * delay + 1);
  }
}

TEST(Detector, DamagedStateIsAnError) {
  Detector detector(flat(0.7));
  const Json good = detector.state();
  for (const char* key : {"schema", "baseline", "pooled", "strata", "peak", "mix", "cusum"}) {
    Json bad = good;
    bad[key] = 3;
    EXPECT_THROW(detector.restore(bad, "state"), Error) << key;
  }
  Json bad = good;
  bad["pooled"]["bets"][0]["m"] = "nan";
  EXPECT_THROW(detector.restore(bad, "state"), Error);
  bad = good;
  bad["pooled"]["total"]["n"] = -1;
  EXPECT_THROW(detector.restore(bad, "state"), Error);
  EXPECT_NO_THROW(detector.restore(good, "state"));
}

}  // namespace
}  // namespace specdec::monitor
