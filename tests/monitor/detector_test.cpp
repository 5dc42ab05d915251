#include "monitor/detector.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/monitor/traffic.h"

namespace specdec::monitor {
namespace {

const double kLevel = std::log(1e5);

// Requests after the change until the alarm; 200 quiet requests come first.
int64_t delay(Detector detector, uint64_t stream, const std::function<bool(Detector&, Traffic&, bool changed)>& next, int64_t limit = 5000) {
  Traffic traffic(stream);
  for (int i = 0; i < 200; ++i) next(detector, traffic, false);
  for (int64_t i = 1; i <= limit; ++i) {
    next(detector, traffic, true);
    if (detector.log_evidence() >= kLevel) return i;
  }
  return limit;
}

double mean_delay(double to, int runs) {
  double sum = 0;
  for (int run = 0; run < runs; ++run)
    sum += static_cast<double>(delay(Detector({{"", flat_baseline(0.70)}}), 100 + static_cast<uint64_t>(run),
                                     [&](Detector& d, Traffic& t, bool changed) { return d.add("", t.request(changed ? to : 0.70), 0); }));
  return sum / runs;
}

// .70 → .65 at sd .10, A = 1e5, tol .01 in at most 160 requests on average, .60 in at most 65.
TEST(Detector, FindsADropInTime) {
  const double small = mean_delay(0.65, 60), large = mean_delay(0.60, 60);
  EXPECT_LE(small, 160);
  EXPECT_GE(small, 60) << "faster than the statistics allow: is the bound wrong?";
  EXPECT_LE(large, 65);
  EXPECT_GE(large, 20);
}

TEST(Detector, StaysQuietInControl) {
  for (const double sd : {0.05, 0.10, 0.15}) {
    Detector detector({{"", flat_baseline(0.70)}});
    Traffic traffic(static_cast<uint64_t>(sd * 100));
    for (int i = 0; i < 20000; ++i) detector.add("", traffic.request(0.70, sd), i);
    EXPECT_LT(detector.peak().log_evidence, kLevel) << "sd " << sd;
    EXPECT_EQ(detector.pooled().total.n, 20000);
    EXPECT_NEAR(detector.within_part(false), 0, 0.005);
  }
}

// The theorem: E[time to a false alarm] ≥ A, at the boundary mean = b exactly (tol taken out), here for a small A.
TEST(Detector, FalseAlarmsAreAtLeastAsRareAsPromised) {
  const double a = 300, level = std::log(a);
  double sum = 0;
  const int runs = 60;
  for (int run = 0; run < runs; ++run) {
    Detector detector({{"", flat_baseline(0.71)}});   // tol .01: the bound is .70
    Traffic traffic(5000 + static_cast<uint64_t>(run));
    int64_t n = 0;
    while (n < 6000 && detector.log_evidence() < level) detector.add("", traffic.request(0.70), ++n);
    sum += static_cast<double>(n);
  }
  EXPECT_GE(sum / runs, a);
}

// The baseline follows the positions reached: adaptive K is no drift, in either direction.
TEST(Detector, ChangesOfKAreNoDrift) {
  const std::vector<double> hazards = {.8, .75, .65, .55, .45, .4, .35};
  const StratumBaseline baseline{hazards, 0.7, 0, 1};
  for (const auto& [before, after] : {std::pair<size_t, size_t>{7, 2}, {2, 7}}) {
    Detector detector({{"", baseline}});
    Traffic traffic(before);
    for (int i = 0; i < 3000; ++i) detector.add("", traffic.chain(hazards, i < 1500 ? before : after), i);
    EXPECT_LT(detector.peak().log_evidence, kLevel) << before << " to " << after;
    EXPECT_NEAR(detector.within_part(false), 0, 0.01);
  }
  // The same stream against a flat baseline alarms at once: the test can fail.
  Detector flat({{"", flat_baseline(0.775)}});
  Traffic traffic(7);
  for (int i = 0; i < 500; ++i) flat.add("", traffic.chain(hazards, 7), i);
  EXPECT_GE(flat.peak().log_evidence, kLevel);
}

TEST(Detector, AShiftOfTheMixIsNoDrift) {
  const std::map<std::string, StratumBaseline> baselines = {{"easy", flat_baseline(0.80, 0.5)}, {"hard", flat_baseline(0.60, 0.5)}};
  Detector detector(baselines);
  Traffic traffic(3);
  for (int i = 0; i < 20000; ++i) {
    const bool easy = traffic.random.uniform() < (i < 2000 ? 0.5 : 0.3);
    detector.add(easy ? "easy" : "hard", traffic.request(easy ? 0.80 : 0.60), i);
  }
  EXPECT_LT(detector.peak().log_evidence, kLevel);
  EXPECT_NEAR(detector.mix_part(false), -0.04 * 0.9, 0.005);
  EXPECT_NEAR(detector.within_part(false), 0, 0.005);
}

TEST(Detector, NamesTheGuiltyStratum) {
  const std::map<std::string, StratumBaseline> baselines = {
      {"chat", flat_baseline(0.80, 0.55)}, {"code", flat_baseline(0.70, 0.15)}, {"maths", flat_baseline(0.60, 0.30)}};
  double sum = 0;
  const int runs = 20;
  int near = 0;
  for (int run = 0; run < runs; ++run) {
    Detector detector(baselines);
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
  Detector detector({{"", flat_baseline(0.70)}});
  Traffic traffic(1);
  for (int i = 0; i < 200; ++i) detector.add("", traffic.request(0.50), i);
  for (int i = 0; i < 3000; ++i) detector.add("", traffic.request(0.95, 0.02), i);
  EXPECT_LT(detector.log_evidence(), kLevel);
  EXPECT_GE(detector.peak().log_evidence, kLevel);
  EXPECT_EQ(detector.peak().requests, 200);
}

TEST(Detector, PartsSinceTheChangeAreNotDilutedByTheQuietTime) {
  Detector detector({{"", flat_baseline(0.70)}});
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
  Detector detector({{"", flat_baseline(0.70)}});
  Traffic traffic(1);
  EXPECT_FALSE(detector.add("", traffic.request(0.7, 0.1, 7), 0));
  EXPECT_TRUE(detector.add("", traffic.request(0.7, 0.1, 8), 0));
  EXPECT_FALSE(detector.add("", AcceptanceCounts{}, 0));
}

TEST(Detector, UnknownStrataUseTheBaselineOfEverything) {
  Detector with({{"code", flat_baseline(0.6)}, {"", flat_baseline(0.7, 0)}}), without({{"code", flat_baseline(0.6)}});
  Traffic traffic(1);
  EXPECT_TRUE(with.add("poems", traffic.request(0.7), 0));
  EXPECT_EQ(with.strata().at("").total.n, 1);
  EXPECT_FALSE(without.add("poems", traffic.request(0.7), 0));
}

TEST(Detector, ImpossibleEvidenceNeitherOverflowsNorStops) {
  Detector detector({{"", flat_baseline(1.0)}});
  AcceptanceCounts dead;
  dead.reached_at = {1000};
  dead.overlap_sum_at = {0};
  for (int i = 0; i < 20000; ++i) detector.add("", dead, i);
  EXPECT_TRUE(std::isfinite(detector.log_evidence()));
  EXPECT_GT(detector.log_evidence(), 1e4);
}

// One process or two: the same bits.
TEST(Detector, StateSurvivesARestartBitForBit) {
  const std::map<std::string, StratumBaseline> baselines = {{"a", flat_baseline(0.8, 0.5)}, {"b", flat_baseline(0.6, 0.5)}, {"", flat_baseline(0.7, 0)}};
  Detector whole(baselines), first(baselines);
  Traffic traffic(11);
  std::vector<std::pair<std::string, AcceptanceCounts>> stream;
  for (int i = 0; i < 700; ++i) stream.emplace_back(i % 3 ? "a" : i % 2 ? "b" : "c", traffic.request(i < 400 ? 0.72 : 0.55));
  for (size_t i = 0; i < stream.size(); ++i) whole.add(stream[i].first, stream[i].second, static_cast<int64_t>(i));
  for (size_t i = 0; i < 350; ++i) first.add(stream[i].first, stream[i].second, static_cast<int64_t>(i));
  Detector second(baselines);
  second.restore(parse_json(first.state().dump(), "test"), "test");
  EXPECT_EQ(second.state(), first.state());
  for (size_t i = 350; i < stream.size(); ++i) second.add(stream[i].first, stream[i].second, static_cast<int64_t>(i));
  EXPECT_EQ(second.state().dump(), whole.state().dump());
  EXPECT_EQ(second.log_evidence(), whole.log_evidence());
}

TEST(Detector, DamagedStateIsAnError) {
  Detector detector({{"", flat_baseline(0.7)}});
  const Json good = detector.state();
  for (const char* key : {"schema", "pooled", "strata", "peak"}) {
    Json bad = good;
    bad[key] = 3;
    EXPECT_THROW(detector.restore(bad, "state"), Error) << key;
  }
  Json bad = good;
  bad["pooled"]["m0"] = "nan";
  EXPECT_THROW(detector.restore(bad, "state"), Error);
  bad = good;
  bad["pooled"]["total"]["n"] = -1;
  EXPECT_THROW(detector.restore(bad, "state"), Error);
  EXPECT_NO_THROW(detector.restore(good, "state"));
}

TEST(Baselines, ComeFromTheRollOuts) {
  ValidationReport report;
  EXPECT_THROW(baselines(report), Error);
  for (int i = 0; i < 100; ++i) report.rollout.counts.add_step(2, 2, {0.8, 0.6});
  report.rollout.alpha = {0.7, {0.6671, 0.7329}, 100};
  report.alpha = {0.9, {0.9, 0.9}, 100};
  auto all = baselines(report);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[""].overlap.size(), 2u);
  EXPECT_NEAR(all[""].overlap[1], 0.6, 1e-9);
  EXPECT_EQ(all[""].mean, 0.7) << "the teacher-forced alpha is another statistic";
  EXPECT_NEAR(all[""].standard_error, 0.02, 1e-4);
  EXPECT_EQ(all[""].share, 1);
  report.segments.push_back({"code", {0.5, {0.4, 0.6}, 30}, report.rollout, 0});
  report.segments.push_back({"unmeasured", {0.5, {0.4, 0.6}, 10}, {}, 0});
  all = baselines(report);
  EXPECT_EQ(all.size(), 2u);
  EXPECT_EQ(all["code"].share, 0.75);
  EXPECT_EQ(all[""].share, 0);
}

}  // namespace
}  // namespace specdec::monitor
