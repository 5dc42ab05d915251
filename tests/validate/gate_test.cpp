#include "deploy/validate/gate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/philox.h"

namespace specdec::deploy {
namespace {

// Makes a report in which every part was measured with a good result.
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
Verdict verdict(const ValidationReport& r) { return judge(r).verdict; }

TEST(Gate, PassNeedsEveryPart) {
  EXPECT_EQ(verdict(good()), Verdict::kPass);
  auto r = good();
  r.alpha.n = 0;
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  EXPECT_NE(judge(r).reason.find("not measured: acceptance"), std::string::npos);
  r = good();
  r.has_speed = false;
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  r = good();
  r.has_lossless = false;
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  EXPECT_NE(judge(r).reason.find("lossless"), std::string::npos);
}

TEST(Gate, EachBranch) {
  auto r = good();
  r.differences = 1;
  EXPECT_EQ(verdict(r), Verdict::kNotLossless);
  r = good();
  r.sampled_p_value = 1e-4;
  EXPECT_EQ(verdict(r), Verdict::kNotLossless);
  r.sampled_p_value = 1.01e-4;
  EXPECT_EQ(verdict(r), Verdict::kPass);
  r = good();
  r.near_ties = 4;
  EXPECT_EQ(verdict(r), Verdict::kPass);

  r = good();
  r.alpha = {0.5, {0.45, 0.599}, 100};
  EXPECT_EQ(verdict(r), Verdict::kFail);
  r.alpha.ci.high = 0.6;  // the interval's upper end equals the floor
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  r.alpha = {0.62, {0.6, 0.64}, 100};  // the lower end equals the floor, but must be above it to pass
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  r.alpha.ci.low = 0.601;
  EXPECT_EQ(verdict(r), Verdict::kPass);

  r = good();
  r.speedup = {0.9, {0.8, 1.0}, 8};
  EXPECT_EQ(verdict(r), Verdict::kNotWorthIt);
  r.speedup.ci.high = 1.01;
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  r.speedup = {1.1, {1.0, 1.2}, 8};
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  r.speedup.ci.low = 1.001;
  EXPECT_EQ(verdict(r), Verdict::kPass);
}

// All parts fail at first; then one failure after another is removed, in the order in which they are judged.
TEST(Gate, OrderOfJudgement) {
  auto r = good();
  r.differences = 2;
  r.alpha = {0.3, {0.28, 0.32}, 100};
  r.speedup = {0.5, {0.45, 0.55}, 8};
  EXPECT_EQ(judge(r, "made for another target").verdict, Verdict::kStale);
  EXPECT_EQ(judge(r, "made for another target").reason, "made for another target");
  EXPECT_EQ(judge(r).verdict, Verdict::kNotLossless);
  r.differences = 0;
  EXPECT_EQ(judge(r).verdict, Verdict::kFail);
  r.alpha = good().alpha;
  EXPECT_EQ(judge(r).verdict, Verdict::kNotWorthIt);
  r.speedup = good().speedup;
  EXPECT_EQ(judge(r).verdict, Verdict::kPass);
}

TEST(Gate, FewerPartsStillDecideWhatIsDecided) {
  ValidationReport r;
  r.alpha = {0.3, {0.28, 0.32}, 100};
  EXPECT_EQ(verdict(r), Verdict::kFail);
  r.alpha = good().alpha;
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  r = {};
  r.has_speed = true;
  r.speedup = {0.5, {0.45, 0.55}, 8};
  EXPECT_EQ(verdict(r), Verdict::kNotWorthIt);
  r = {};
  r.has_lossless = true;
  r.differences = 1;
  EXPECT_EQ(verdict(r), Verdict::kNotLossless);
  EXPECT_EQ(verdict({}), Verdict::kInconclusive);
}

// Times measured on a busy machine decide nothing, whether they show a gain or a loss, and the reason must say so.
TEST(Gate, ABusyMachineIsInconclusive) {
  for (const Estimate speedup : {Estimate{0.8, {0.7, 0.9}, 8}, Estimate{1.5, {1.4, 1.6}, 8}}) {
    auto r = good();
    r.speedup = speedup;
    r.machine = MachineUse{2, 2, 1.94, 0, 0.97, 24, 24, 0, true};
    EXPECT_EQ(verdict(r), Verdict::kInconclusive);
    EXPECT_NE(judge(r).reason.find("the machine was busy: other processes used 1.9 of 2 CPUs while it was timed; run "
                                   "it again on an idle machine"),
              std::string::npos)
        << judge(r).reason;
    r.machine->busy = false;
    EXPECT_EQ(verdict(r), speedup.value > 1 ? Verdict::kPass : Verdict::kNotWorthIt);
    EXPECT_EQ(judge(r).reason.find("busy"), std::string::npos);
    EXPECT_EQ(judge(r).reason.find("other processes"), std::string::npos);
  }
  auto r = good();
  r.alpha = {0.5, {0.45, 0.55}, 100};
  r.machine = MachineUse{2, 2, 1.94, 0, 0.97, 24, 24, 0, true};
  EXPECT_EQ(verdict(r), Verdict::kFail) << "what no time decides";
}

TEST(Gate, AnOpenSpeedupNamesTheFlag) {
  auto r = good();
  r.speedup = {1.02, {0.98, 1.06}, 8};
  EXPECT_EQ(judge(r).reason,
            "speed-up at batch 1 1.020 [0.980, 1.060] is not decided: its interval contains 1; give more prompts "
            "(--speed-prompts 39)");
  r.speedup = {1.5, {1.4, 1.6}, 3};
  EXPECT_EQ(verdict(r), Verdict::kInconclusive) << "three prompts give no interval";
  EXPECT_NE(judge(r).reason.find("--speed-prompts 8"), std::string::npos) << judge(r).reason;
  r.speedup.n = 4;
  EXPECT_EQ(verdict(r), Verdict::kPass);
}

TEST(Gate, EveryVerdictComesWithItsFigures) {
  auto r = good();
  ASSERT_EQ(judge(r).judged_by.size(), 2u);
  EXPECT_EQ(judge(r).judged_by[0].check, "acceptance");
  EXPECT_EQ(judge(r).judged_by[0].limit, 0.6);
  EXPECT_EQ(judge(r).judged_by[1].check, "speed-up");
  EXPECT_EQ(judge(r).judged_by[1].ci.low, 1.4);
  r.speedup = {0.912, {0.873, 0.953}, 8};
  ASSERT_EQ(judge(r).judged_by.size(), 1u);
  EXPECT_EQ(judge(r).judged_by[0].value, 0.912);
  EXPECT_EQ(judge(r).judged_by[0].limit, 1);
  r.speedup.ci.high = 1.1;
  ASSERT_EQ(judge(r).judged_by.size(), 1u) << "what is open";
  EXPECT_EQ(judge(r).judged_by[0].check, "speed-up");
}

TEST(Gate, GoalIsReportedOnly) {
  auto r = good();
  EXPECT_NE(judge(r).reason.find("goal 0.70"), std::string::npos);
  r.alpha = {0.68, {0.66, 0.69}, 100};
  EXPECT_EQ(verdict(r), Verdict::kPass);
  EXPECT_EQ(judge(r).reason.find("goal"), std::string::npos);
}

TEST(Gate, LowFloorsNeedForce) {
  EXPECT_NO_THROW(check_floor("--floor", 0.5, false));
  EXPECT_THROW(check_floor("--floor", 0.499, false), Error);
  EXPECT_NO_THROW(check_floor("--floor", 0.2, true));
  EXPECT_THROW(check_floor("--floor", 1.2, true), Error);
  EXPECT_THROW(check_floor("--floor", std::nan(""), true), Error);
  try {
    check_floor("--segment-floor code", 0.2, false);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(e.what()).find("--segment-floor code"), std::string::npos);
  }
}

TEST(Gate, SegmentsWithAFloorDecide) {
  auto r = good();
  r.segments = {{"chat", {0.8, {0.75, 0.85}, 50}, {}, 0, 0.7}, {"code", {0.4, {0.35, 0.45}, 50}, {}, 0, {}}};
  EXPECT_EQ(verdict(r), Verdict::kPass);  // the segment "code" has no floor
  r.segments[1].floor = 0.5;
  EXPECT_EQ(verdict(r), Verdict::kFail);
  EXPECT_NE(judge(r).reason.find("acceptance of code 0.400 [0.350, 0.450] is below its floor 0.50"), std::string::npos);
  r.segments[1].alpha.ci.high = 0.55;
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  EXPECT_NE(judge(r).reason.find("code"), std::string::npos);
  r.segments[1].alpha = {0.6, {0.51, 0.65}, 50};
  EXPECT_EQ(verdict(r), Verdict::kPass);
}

TEST(Gate, TheServingDraftDecidesWhereAGainIsAsked) {
  auto r = good();
  r.baseline = ValidationReport::Baseline{{-0.10, {-0.12, -0.08}, 90}, "old", std::string(64, 'a'), std::nullopt, {}};
  EXPECT_EQ(verdict(r), Verdict::kPass);  // without min_gain, the difference to the serving draft is never judged
  r.baseline->min_gain = -0.02;
  EXPECT_EQ(verdict(r), Verdict::kFail);
  EXPECT_NE(judge(r).reason.find("serving draft -0.100 [-0.120, -0.080] is below -0.020"), std::string::npos);
  r.baseline->difference.ci.high = 0.01;
  EXPECT_EQ(verdict(r), Verdict::kInconclusive);
  r.baseline->difference.ci.low = -0.01;
  EXPECT_EQ(verdict(r), Verdict::kPass);
  r.baseline->segments = {{"code", {-0.1, {-0.3, -0.03}, 20}, false}};
  EXPECT_EQ(verdict(r), Verdict::kPass);  // this segment is not judged: too few requests
  r.baseline->segments[0].judged = true;
  EXPECT_EQ(verdict(r), Verdict::kFail);
  r.baseline->segments[0].difference.ci.high = -0.02;
  EXPECT_EQ(verdict(r), Verdict::kPass);  // the whole interval must be below the limit to fail
}

TEST(AcceptanceGate, IsSureAsSoonAsEveryFloorIsDecided) {
  AcceptanceRules rules;
  rules.segment_floors = {{"code", 0.6}};
  AcceptanceGate gate(rules);
  int n = 0;
  while (!gate.sure() && n < 200) {
    const std::vector<ScoredRequest> chat = {{"chat", 0.9}, {"chat", 0.7}};
    gate.observe(chat);
    ++n;
  }
  EXPECT_EQ(n, 200);  // above the floor, but segment `code` has no requests yet
  while (!gate.sure() && n < 400) {
    const std::vector<ScoredRequest> code = {{"code", 0.8}};
    gate.observe(code);
    ++n;
  }
  EXPECT_LT(n, 240);
  ValidationReport r;
  gate.fill(r);
  EXPECT_EQ(r.alpha.n, 400 + n - 200);
  EXPECT_EQ(r.requests_needed, r.alpha.n);
  EXPECT_NEAR(r.alpha.value, 0.8, 1e-9);
  ASSERT_EQ(r.segments.size(), 2u);
  EXPECT_EQ(r.segments[0].alpha.n, 400);
  EXPECT_FALSE(r.segments[0].floor);
  EXPECT_EQ(*r.segments[1].floor, 0.6);
  EXPECT_GT(r.segments[1].alpha.ci.low, 0.6);
  ASSERT_GT(r.sequence.size(), 10u);
  EXPECT_EQ(r.sequence.front().requests, 2);
  EXPECT_EQ(r.sequence.back().requests, r.alpha.n);
  EXPECT_EQ(r.sequence.back().low, r.alpha.ci.low);
  for (size_t i = 1; i < r.sequence.size(); ++i)
    EXPECT_LE(r.sequence[i].high - r.sequence[i].low, r.sequence[i - 1].high - r.sequence[i - 1].low + 1e-12);

  AcceptanceGate failing(rules);  // the gate decides as soon as the whole interval is below one floor
  const std::vector<ScoredRequest> bad = {{"code", 0.3}, {"chat", 0.95}, {"chat", 0.95}};
  for (n = 0; !failing.sure() && n < 100; ++n) failing.observe(bad);
  EXPECT_LT(n, 40);
}

TEST(AcceptanceGate, PairsWithTheOtherDraft) {
  AcceptanceRules rules;
  rules.paired = true;
  rules.min_gain = -0.02;
  rules.big_segments = {"code"};
  AcceptanceGate same(rules), worse(rules), worse_in_code(rules);
  PhiloxStream random(6, 6);
  for (int i = 0; i < 500; ++i) {
    const double a = 0.65 + 0.3 * random.uniform(), noise = 0.02 * (random.uniform() - 0.5);
    const std::string segment = i % 4 ? "chat" : "code";
    const std::vector<ScoredRequest> alike = {{segment, a, a + noise}}, lower = {{segment, a - 0.05, a + noise}},
                                     lower_in_code = {{segment, i % 4 ? a : a - 0.3, a + noise}};
    same.observe(alike);
    worse.observe(lower);
    worse_in_code.observe(lower_in_code);
  }
  ValidationReport r;
  same.fill(r);
  EXPECT_TRUE(same.sure());
  EXPECT_GT(r.baseline->difference.ci.low, -0.02);
  EXPECT_NEAR(r.baseline->difference.value, 0, 0.002);
  EXPECT_EQ(r.baseline->difference.n, 500);
  worse.fill(r);
  EXPECT_LT(r.baseline->difference.ci.high, -0.02);
  EXPECT_NEAR(r.baseline->difference.value, -0.05, 0.002);
  worse_in_code.fill(r);
  ASSERT_EQ(r.baseline->segments.size(), 2u);
  EXPECT_TRUE(r.baseline->segments[1].judged);
  EXPECT_FALSE(r.baseline->segments[0].judged);
  EXPECT_LT(r.baseline->segments[1].difference.ci.high, -0.02);
}

TEST(Baseline, PairsBySharedRequests) {
  ValidationReport before, now;
  for (int i = 0; i < 400; ++i) {
    before.request_ids.push_back("r" + std::to_string(i));
    before.request_alphas.push_back(0.3 + 0.001 * i);  // alpha differs a lot between requests
  }
  for (int i = 399; i >= 10; --i) {  // the same requests in another order, without ten of them, and one added
    now.request_ids.push_back("r" + std::to_string(i));
    now.request_alphas.push_back(0.3 + 0.001 * i + 0.05 + (i % 2 ? 0.004 : -0.004));
  }
  now.request_ids.push_back("new");
  now.request_alphas.push_back(0.99);
  const Estimate d = paired_difference(now, before);
  EXPECT_EQ(d.n, 390);
  EXPECT_NEAR(d.value, 0.05, 1e-12);
  EXPECT_GT(d.ci.low, 0.03);
  EXPECT_LT(d.ci.high, 0.07);
  EXPECT_LT(d.ci.low, d.value);
  EXPECT_GT(d.ci.high, d.value);
}

// Ten requests of one conversation say little more than a single request.
TEST(Baseline, CountsConversations) {
  ValidationReport before, now;
  std::map<std::string, std::string> conversations;
  for (int i = 0; i < 400; ++i) {
    const std::string id = std::to_string(i);
    before.request_ids.push_back(id);
    before.request_alphas.push_back(0.5);
    now.request_alphas.push_back(0.6);
    conversations[id] = std::to_string(i / 10);
  }
  now.request_ids = before.request_ids;
  const Estimate apart = paired_difference(now, before), together = paired_difference(now, before, conversations);
  EXPECT_EQ(together.n, 400);
  EXPECT_NEAR(together.value, 0.1, 1e-12);
  EXPECT_LT(together.ci.low, apart.ci.low - 0.05);
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
