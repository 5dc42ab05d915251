#include "deploy/validate/gate.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace specdec::deploy {
namespace {

// Every part measured and good.
ValidationReport good() {
  ValidationReport r;
  r.alpha = {0.75, {0.72, 0.78}, 100};
  r.has_speed = true;
  r.speedup = {1.5, {1.4, 1.6}, 8};
  r.has_lossless = true;
  r.greedy_prompts = r.greedy_identical = 16;
  r.sampled_p_value = 0.4;
  return r;
}
std::string verdict(const ValidationReport& r, GateRules rules = {}) { return judge(r, rules).verdict; }

TEST(Gate, PassNeedsEveryPart) {
  EXPECT_EQ(verdict(good()), "pass");
  auto r = good();
  r.alpha.n = 0;
  EXPECT_EQ(verdict(r), "inconclusive");
  EXPECT_NE(judge(r, {}).reason.find("not measured: acceptance"), std::string::npos);
  r = good();
  r.has_speed = false;
  EXPECT_EQ(verdict(r), "inconclusive");
  r = good();
  r.has_lossless = false;
  EXPECT_EQ(verdict(r), "inconclusive");
  EXPECT_NE(judge(r, {}).reason.find("lossless"), std::string::npos);
}

TEST(Gate, EachBranch) {
  auto r = good();
  r.differences = 1;
  EXPECT_EQ(verdict(r), "not_lossless");
  r = good();
  r.sampled_p_value = 1e-4;
  EXPECT_EQ(verdict(r), "not_lossless");
  r.sampled_p_value = 1.01e-4;
  EXPECT_EQ(verdict(r), "pass");
  r = good();
  r.near_ties = 4;
  EXPECT_EQ(verdict(r), "pass");

  r = good();
  r.alpha = {0.5, {0.45, 0.599}, 100};
  EXPECT_EQ(verdict(r), "fail");
  r.alpha.ci.high = 0.6;  // touches the floor
  EXPECT_EQ(verdict(r), "inconclusive");
  r.alpha = {0.62, {0.6, 0.64}, 100};  // the lower end must be above, not on it
  EXPECT_EQ(verdict(r), "inconclusive");
  r.alpha.ci.low = 0.601;
  EXPECT_EQ(verdict(r), "pass");

  r = good();
  r.speedup = {0.9, {0.8, 1.0}, 8};
  EXPECT_EQ(verdict(r), "not_worth_it");
  r.speedup.ci.high = 1.01;
  EXPECT_EQ(verdict(r), "inconclusive");
  r.speedup = {1.1, {1.0, 1.2}, 8};
  EXPECT_EQ(verdict(r), "inconclusive");
  r.speedup.ci.low = 1.001;
  EXPECT_EQ(verdict(r), "pass");
}

// Everything is wrong at once, then one fault after the other is taken away.
TEST(Gate, OrderOfJudgement) {
  auto r = good();
  r.differences = 2;
  r.alpha = {0.3, {0.28, 0.32}, 100};
  r.speedup = {0.5, {0.45, 0.55}, 8};
  GateRules rules;
  rules.stale = "made for another target";
  EXPECT_EQ(judge(r, rules).verdict, "stale");
  EXPECT_EQ(judge(r, rules).reason, "made for another target");
  rules.stale.clear();
  EXPECT_EQ(judge(r, rules).verdict, "not_lossless");
  r.differences = 0;
  EXPECT_EQ(judge(r, rules).verdict, "fail");
  r.alpha = good().alpha;
  EXPECT_EQ(judge(r, rules).verdict, "not_worth_it");
  r.speedup = good().speedup;
  EXPECT_EQ(judge(r, rules).verdict, "pass");
}

TEST(Gate, FewerPartsStillDecideWhatIsDecided) {
  ValidationReport r;
  r.alpha = {0.3, {0.28, 0.32}, 100};
  EXPECT_EQ(verdict(r), "fail");
  r.alpha = good().alpha;
  EXPECT_EQ(verdict(r), "inconclusive");
  r = {};
  r.has_speed = true;
  r.speedup = {0.5, {0.45, 0.55}, 8};
  EXPECT_EQ(verdict(r), "not_worth_it");
  r = {};
  r.has_lossless = true;
  r.differences = 1;
  EXPECT_EQ(verdict(r), "not_lossless");
  EXPECT_EQ(verdict({}), "inconclusive");
}

TEST(Gate, ExitCodes) {
  const std::pair<const char*, int> codes[] = {{"pass", 0},         {"fail", 3},  {"not_lossless", 3},
                                               {"inconclusive", 4}, {"stale", 5}, {"not_worth_it", 6}};
  for (const auto& [name, code] : codes) EXPECT_EQ(verdict_exit_code(name), code);
}

TEST(Gate, GoalIsReportedOnly) {
  auto r = good();
  EXPECT_NE(judge(r, {}).reason.find("goal 0.70"), std::string::npos);
  r.alpha = {0.68, {0.66, 0.69}, 100};
  EXPECT_EQ(verdict(r), "pass");
  EXPECT_EQ(judge(r, {}).reason.find("goal"), std::string::npos);
}

TEST(Gate, LowFloorsNeedForce) {
  EXPECT_NO_THROW(check_rules({0.5, 0.7, ""}, false));
  EXPECT_THROW(check_rules({0.499, 0.7, ""}, false), Error);
  EXPECT_NO_THROW(check_rules({0.2, 0.7, ""}, true));
  EXPECT_THROW(check_rules({1.2, 0.7, ""}, true), Error);
  EXPECT_THROW(check_rules({0.6, -0.1, ""}, true), Error);
  EXPECT_THROW(check_rules({std::nan(""), 0.7, ""}, true), Error);
  try {
    check_rules({0.2, 0.7, ""}, false);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(e.what()).find("--floor"), std::string::npos);
  }
}

TEST(Baseline, PairsBySharedRequests) {
  ValidationReport before, now;
  for (int i = 0; i < 40; ++i) {
    before.request_ids.push_back("r" + std::to_string(i));
    before.request_alphas.push_back(0.3 + 0.01 * i);  // requests differ far more than the drafts do
  }
  for (int i = 39; i >= 10; --i) {  // another order, fewer, and one that is new
    now.request_ids.push_back("r" + std::to_string(i));
    now.request_alphas.push_back(0.3 + 0.01 * i + 0.05 + (i % 2 ? 0.004 : -0.004));
  }
  now.request_ids.push_back("new");
  now.request_alphas.push_back(0.99);
  const Estimate d = paired_difference(now, before);
  EXPECT_EQ(d.n, 30);
  EXPECT_NEAR(d.value, 0.05, 1e-12);
  EXPECT_GT(d.ci.low, 0.045);
  EXPECT_LT(d.ci.high, 0.055);
  EXPECT_LT(d.ci.low, d.value);
  EXPECT_GT(d.ci.high, d.value);
}

TEST(Baseline, NothingShared) {
  ValidationReport before, now;
  before.request_ids = {"a"};
  before.request_alphas = {0.5};
  now.request_ids = {"b"};
  now.request_alphas = {0.5};
  const Estimate d = paired_difference(now, before);
  EXPECT_EQ(d.n, 0);
  EXPECT_EQ(d.ci.low, -1);
  EXPECT_EQ(d.ci.high, 1);
}

}  // namespace
}  // namespace specdec::deploy
