#include "monitor/statistics/baseline.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/monitor/traffic.h"

namespace specdec::monitor {
namespace {

TEST(Baselines, ComeFromTheRollOuts) {
  ValidationReport report;
  EXPECT_THROW(baselines(report), Error);
  for (int i = 0; i < 100; ++i) report.rollout.counts.add_step(2, 2, {0.8, 0.6});
  report.rollout.alpha = {0.7, {0.6671, 0.7329}, 100};
  report.alpha = {0.9, {0.9, 0.9}, 100};
  auto all = baselines(report).strata;
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[""].overlap.size(), 2u);
  EXPECT_NEAR(all[""].overlap[1], 0.6, 1e-9);
  EXPECT_EQ(all[""].mean, 0.7) << "the teacher-forced alpha is another statistic";
  EXPECT_NEAR(all[""].standard_error, 0.02, 1e-4);
  EXPECT_EQ(all[""].share, 1);
  report.segments.push_back({"code", {0.5, {0.4, 0.6}, 30}, report.rollout, 0});
  report.segments.push_back({"unmeasured", {0.5, {0.4, 0.6}, 10}, {}, 0});
  all = baselines(report).strata;
  EXPECT_EQ(all.size(), 2u);
  EXPECT_EQ(all["code"].share, 0.75);
  EXPECT_EQ(all[""].share, 0);
}

TEST(Baselines, WhatTheGateDidNotMeasureIsNotJudged) {
  ValidationReport report;
  for (int i = 0; i < 100; ++i) report.rollout.counts.add_step(1, 1, {0.8});
  report.rollout.alpha = {0.8, {0.79, 0.81}, 100};
  report.segments.push_back({"code", {0.8, {0.7, 0.9}, 30}, report.rollout, 0});
  report.temperature = 0;
  const Baseline cold = baselines(report);
  EXPECT_EQ(cold.find("code t0")->first, "code t0");
  EXPECT_EQ(cold.find("poems t0")->first, "") << "a domain never seen, under the conditions of the gate";
  for (const char* key : {"code", "code t0.7", "code t0 json", "poems", "-", "code t0 eff"})
    EXPECT_EQ(cold.find(key), nullptr) << key;
  report.temperature = 1;
  const Baseline usual = baselines(report);
  EXPECT_EQ(usual.find("code")->first, "code");
  EXPECT_EQ(usual.find("-")->first, "");
  EXPECT_EQ(usual.find("code json"), nullptr);
}

TEST(StratumKey, IsDomainTemperatureAndGrammar) {
  AcceptanceRecord r;
  r.segment = "code";
  const auto key = [&](double temperature) {
    r.temperature = temperature;
    return stratum_key(r);
  };
  EXPECT_EQ(stratum_key({}), "-");
  EXPECT_EQ(key(0), "code t0");
  EXPECT_EQ(key(0.01), "code t0.7");
  EXPECT_EQ(key(0.7), "code t0.7");
  EXPECT_EQ(key(0.71), "code");
  EXPECT_EQ(key(1.2), "code");
  EXPECT_EQ(key(1.3), "code t1.2+");
  r.constrained = r.efficiency = true;
  EXPECT_EQ(key(1), "code json eff");
}

// Estimates a baseline from `requests` requests over `days` days. Domain number i, "d<i>", has shares[i] percent of the
// requests. Acceptance is .70, with a daily variation of amplitude `slow`.
EstimatedBaseline estimate(int64_t requests, double days, const std::vector<int>& shares, double slow = 0) {
  return estimate_baseline([&](const auto& take) {
    Traffic t(9);
    for (int64_t n = 0; n < requests; ++n) {
      AcceptanceRecord r;
      r.time =
          1795000000 + static_cast<int64_t>(static_cast<double>(n) * days * 86400 / static_cast<double>(requests - 1));
      int64_t at = n % 100;
      size_t s = 0;
      while (s + 1 < shares.size() && at >= shares[s]) at -= shares[s++];
      r.segment = "d" + std::to_string(s);
      r.counts = t.request(0.70 + slow * std::sin(static_cast<double>(r.time) / 86400 * 6.2832));
      take(r);
    }
  });
}

TEST(EstimatedBaselines, NeedRequestsAndADay) {
  EXPECT_EQ(estimate(1000, 1, {100}).problem, "");
  EXPECT_NE(estimate(999, 2, {100}).problem.find("999 requests over 2"), std::string::npos)
      << estimate(999, 2, {100}).problem;
  EXPECT_NE(estimate(5000, 0.5, {100}).problem.find("at least 1000 over 1"), std::string::npos);
  EXPECT_NE(estimate_baseline([](const auto&) {}).problem, "");
}

TEST(EstimatedBaselines, SmallStrataAreFoldedAndUnseenOnesAreNotJudged) {
  const EstimatedBaseline e = estimate(4000, 2, {90, 8, 1, 1});
  ASSERT_EQ(e.problem, "");
  EXPECT_EQ(e.baseline.strata.size(), 3u) << "d0, d1 and the rest";
  EXPECT_EQ(e.baseline.strata.at("").n, 80);
  EXPECT_EQ(e.baseline.find("d2")->first, "");
  EXPECT_EQ(e.baseline.find("d9"), nullptr);
  EXPECT_EQ(e.baseline.find("d0 t0"), nullptr);
  EXPECT_NEAR(e.baseline.strata.at("d0").mean, 0.70, 0.01);
  EXPECT_NEAR(e.baseline.strata.at("d0").sd, 0.105, 0.01);
  EXPECT_NEAR(e.baseline.strata.at("d0").standard_error, 0.105 / 60, 0.0015);
  EXPECT_EQ(estimate(2000, 2, std::vector<int>(50, 2)).baseline.strata.size(), 1u)
      << "50 domains of 40 requests: all are other";
  EXPECT_EQ(estimate(20000, 2, std::vector<int>(50, 2)).baseline.strata.size(), Baseline::kMaxStrata);
}

TEST(EstimatedBaselines, WanderIsTakenFromTheData) {
  EXPECT_LT(estimate(8000, 3, {60, 40}).wander, 0.007);
  EXPECT_NEAR(estimate(8000, 3, {60, 40}, 0.04).wander, 0.04 / std::sqrt(2.0), 0.01);
}

TEST(EstimatedBaselines, TheFileIsReadBackAndChecked) {
  Baseline baseline = estimate(4000, 2, {90, 8, 1, 1}, 0.02).baseline;
  baseline.draft = "0123456789ab";
  const Json json = to_json(baseline);
  EXPECT_EQ(to_json(baseline_from_json(json, "b")), json);
  EXPECT_EQ(baseline_from_json(json, "b").find("d2")->first, "");
  const auto refused = [&](const std::function<void(Json&)>& change) {
    Json bad = json;
    change(bad);
    EXPECT_THROW(baseline_from_json(bad, "b"), Error) << bad;
  };
  refused([](Json& j) { j["schema"] = "specdec.baseline/2"; });
  refused([](Json& j) { j["strata"] = Json::array(); });
  refused([](Json& j) { j["strata"][0]["overlap"] = Json::array(); });
  refused([](Json& j) { j["strata"][0]["overlap"][0] = 1.5; });
  refused([](Json& j) { j["strata"][0]["wander"] = -1; });
  refused([](Json& j) { j["strata"][1]["name"] = j["strata"][0]["name"]; });
  refused([](Json& j) { j["folded"] = 3; });
  refused([](Json& j) { j.erase("folded"); });
}

}  // namespace
}  // namespace specdec::monitor
