#include "deploy/validate/lossless.h"

#include <gtest/gtest.h>

#include <cmath>

#include "deploy/validate/speed.h"
#include "engine/decode/round/round.h"
#include "engine/decode/sampling/sampler.h"
#include "tests/base/manual_clock.h"
#include "tests/lossless/toy.h"
#include "tests/validate/idle_meter.h"

namespace specdec::deploy {
namespace {

using decode::toy::Model;
using decode::toy::random_logits;

TEST(NearTie, RuleOfTheContract) {
  const double u = unit_roundoff("fp32");
  EXPECT_EQ(u, std::ldexp(1.0, -24));
  EXPECT_EQ(unit_roundoff("bf16"), std::ldexp(1.0, -8));
  EXPECT_EQ(unit_roundoff("fp16"), std::ldexp(1.0, -11));
  EXPECT_EQ(unit_roundoff("int8"), u);
  EXPECT_THROW(unit_roundoff("int4"), std::exception);
  const float one_ulp = std::nextafter(8.f, 9.f) - 8.f;  // distance from 8 to the next float: 2^-20 = 16 u
  EXPECT_TRUE(is_near_tie(std::vector<float>{8.f, 8.f, -1.f}, u));
  EXPECT_TRUE(is_near_tie(std::vector<float>{8.f, 8.f + one_ulp, -1.f}, u));  // 2^-20 < 4 · 2^-24 · 8
  EXPECT_FALSE(is_near_tie(std::vector<float>{8.f, 8.f + 3 * one_ulp, -1.f}, u));
  EXPECT_TRUE(is_near_tie(std::vector<float>{8.f, 8.f + 3 * one_ulp, -32.f}, u));  // -32 sets the tolerance
  EXPECT_FALSE(is_near_tie(std::vector<float>{8.f, 7.9f, -1.f}, u));
  EXPECT_TRUE(is_near_tie(std::vector<float>{8.f, 7.9f, -1.f}, unit_roundoff("bf16")));  // 0.1 < 4 · 2^-8 · 8 = 0.125
  EXPECT_FALSE(is_near_tie(std::vector<float>{8.f, 7.8f, -1.f}, unit_roundoff("bf16")));
  EXPECT_TRUE(is_near_tie(std::vector<float>{-INFINITY, 1.f, 1.f}, u));  // masked tokens do not affect the tolerance
}

TokenRow prompt(const std::string& id, std::vector<int32_t> tokens) {
  TokenRow r;
  r.id = id;
  r.tokens = std::move(tokens);
  r.prompt_tokens = static_cast<int64_t>(r.tokens.size());
  return r;
}

TEST(Greedy, SpeculationIsPlainDecoding) {
  Model target(9, random_logits(1)), draft(9, random_logits(2));
  std::vector<TokenRow> rows;
  for (int i = 0; i < 9; ++i) rows.push_back(prompt("p" + std::to_string(i), {i, 1}));
  decode::RolloutOptions o;
  o.k = 3;
  o.request.max_tokens = 30;
  const GreedyComparison c = compare_greedy({target, draft}, rows, o, unit_roundoff("fp32"));
  EXPECT_EQ(c.prompts, 9);
  EXPECT_EQ(c.identical, 9);
  EXPECT_EQ(c.differences, 0);
}

// Compares answers given here: at the first difference, the target's logits decide.
TEST(Greedy, DifferencesAndNearTies) {
  Model target(4, [](std::span<const int32_t> x, std::span<float> l) {
    // After two tokens, the logits of tokens 1 and 2 nearly tie; later token 2 is clearly ahead.
    const float tie = 4.f + (x.size() == 2 ? 4e-7f : 0.5f);
    l[0] = -4.f;
    l[1] = 4.f;
    l[2] = tie;
    l[3] = x.size() == 2 ? 3.9f : 4.f;
  });
  const std::vector<TokenRow> rows = {prompt("a", {0})};
  const auto judge = [&](std::vector<int32_t> plain, std::vector<int32_t> speculative) {
    const std::vector<decode::Rollout> a = {{std::move(plain), {}}}, b = {{std::move(speculative), {}}};
    return compare_answers(target, rows, a, b, unit_roundoff("fp32"));
  };
  EXPECT_EQ(judge({3, 2}, {3, 2}).identical, 1);
  EXPECT_EQ(judge({3, 1, 0}, {3, 2, 2}).near_ties, 1);    // they differ where tokens 1 and 2 nearly tie
  EXPECT_EQ(judge({3, 1, 0}, {3, 3, 2}).differences, 1);  // 1 and 2 nearly tie there, but 3 does not
  EXPECT_EQ(judge({3, 1, 2}, {3, 1, 1}).differences, 1);  // they differ where no tokens tie
  EXPECT_EQ(judge({3, 1}, {3}).differences, 1);           // only the length differs, so no logits can explain it
  EXPECT_EQ(judge({}, {}).prompts, 0);
  EXPECT_EQ(target.open_sequences(), 0u);
}

TEST(Pearson, MergesThinCells) {
  const std::vector<int64_t> counts = {48, 40, 6, 3, 3};
  const std::vector<double> p = {0.5, 0.4, 0.06, 0.02, 0.02};
  const ChiSquare c = pearson(counts, p);
  // Two cells of the chi-square test expect 0.02 · 100 < 5 counts. Merged they expect 4, still too few, so they join
  // the smallest other cell (6 + 4 expected, 12 seen).
  EXPECT_DOUBLE_EQ(c.df, 2);
  EXPECT_NEAR(c.statistic, 4.0 / 50 + 0.0 / 40 + 4.0 / 10, 1e-12);
  EXPECT_EQ(pearson(std::vector<int64_t>{3}, std::vector<double>{1.0}).df, 0);
  EXPECT_EQ(pearson(std::vector<int64_t>{0, 0}, std::vector<double>{0.5, 0.5}).df, 0);
}

TEST(ProbabilityTransform, OrderedByRatio) {
  const std::vector<float> p = {0.5f, 0.25f, 0.25f, 0.f}, q = {0.25f, 0.5f, 0.125f, 0.125f};
  // The ratios q / p of the tokens are 0.5, 2, 0.5 and ∞ (p = 0). In descending order, token 1 comes first, then 0 and
  // 2 together.
  EXPECT_NEAR(probability_transform(p, q, 1, 0.5), 0.125, 1e-7);
  EXPECT_NEAR(probability_transform(p, q, 0, 0.0), 0.25, 1e-7);
  EXPECT_NEAR(probability_transform(p, q, 0, 1.0), 1.0, 1e-7);
  EXPECT_NEAR(probability_transform(p, q, 2, 0.5), 0.625, 1e-7);
  EXPECT_EQ(probability_transform(p, q, 3, 0.7), 0);
}

const SystemClock kClock;

SampledTest run_sampled(decode::Stepper::VerifyFn rule, uint64_t seed, SamplingOptions sampling = {},
                        int64_t runs = 1600, VerifyRule verify = VerifyRule::kToken) {
  Model target(16, random_logits(1, 1.5)), draft(16, random_logits(2, 1.5));
  SampledOptions o;
  o.sampling = sampling;
  o.verify = verify;
  o.seed = seed;
  o.runs = runs;
  o.seconds = 1e9;
  o.verify_fn = rule;
  const std::vector<std::vector<int32_t>> contexts = {{0}, {1, 2}, {3, 4, 5}, {6}};
  const SampledTest test = sampled_test({target, draft}, contexts, o, kClock);
  EXPECT_EQ(target.open_sequences(), 0u);
  EXPECT_EQ(draft.open_sequences(), 0u);
  return test;
}

TEST(Sampled, TheRightRulesPass) {
  EXPECT_GT(run_sampled(&decode::verify, 0).p_value, 1e-4);
  EXPECT_GT(run_sampled(&decode::verify, 0, {}, 1600, VerifyRule::kBlock).p_value, 1e-4);
  SamplingOptions cut;
  cut.temperature = 0.7;
  cut.top_k = 8;
  cut.top_p = 0.9;
  EXPECT_GT(run_sampled(&decode::verify, 0, cut).p_value, 1e-4);
  SamplingOptions greedy;
  greedy.temperature = 0;  // the test then uses temperature 1
  const SampledTest test = run_sampled(&decode::verify, 0, greedy);
  EXPECT_EQ(test.runs, 1600);
  EXPECT_LT(test.sequence_p, 1);
}

// With a correct engine, a p-value is at most x with a probability of at most x. So the smallest of 200 p-values should
// not be far below 1/200.
TEST(Sampled, Calibration) {
  int below_tenth = 0;
  double smallest = 1;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const double p = run_sampled(&decode::verify, 1000 * (seed + 1), {}, 200).p_value;
    below_tenth += p < 0.1;
    smallest = std::min(smallest, p);
  }
  EXPECT_LE(below_tenth, 38);  // at most 20 are expected, with standard deviation 4.2
  EXPECT_GT(smallest, 1e-4);
}

// Verification rules that are known to be wrong; the sampled test must reject each of them.
decode::VerifyResult keep_everything(VerifyRule, const decode::VerifyInput& in, decode::Randomness& r,
                                     std::vector<float>&) {
  return {static_cast<int64_t>(in.drafted.size()), r.draw(decode::Purpose::kTarget, in.p.back())};
}
decode::VerifyResult residual_from_p(VerifyRule, const decode::VerifyInput& in, decode::Randomness& r,
                                     std::vector<float>&) {
  for (size_t i = 0; i < in.drafted.size(); ++i) {
    const auto x = static_cast<size_t>(in.drafted[i]);
    if (!r.accept(decode::Purpose::kAccept, in.p[i][x] / in.q[i][x]))
      return {static_cast<int64_t>(i), r.draw(decode::Purpose::kResidual, in.p[i])};
  }
  return {static_cast<int64_t>(in.drafted.size()), r.draw(decode::Purpose::kTarget, in.p.back())};
}
decode::VerifyResult accept_too_much(VerifyRule, const decode::VerifyInput& in, decode::Randomness& r,
                                     std::vector<float>& scratch) {
  for (size_t i = 0; i < in.drafted.size(); ++i) {
    const auto x = static_cast<size_t>(in.drafted[i]);
    if (r.accept(decode::Purpose::kAccept, 1.5 * in.p[i][x] / in.q[i][x])) continue;
    scratch.assign(in.p[i].begin(), in.p[i].end());
    for (size_t y = 0; y < scratch.size(); ++y) scratch[y] = std::max(0.f, scratch[y] - in.q[i][y]);
    return {static_cast<int64_t>(i), r.draw(decode::Purpose::kResidual, scratch)};
  }
  return {static_cast<int64_t>(in.drafted.size()), r.draw(decode::Purpose::kTarget, in.p.back())};
}
decode::VerifyResult bonus_from_draft(VerifyRule rule, const decode::VerifyInput& in, decode::Randomness& r,
                                      std::vector<float>& scratch) {
  decode::VerifyInput shifted = in;
  // Draws the bonus token from the draft's distribution instead of the target's.
  if (!in.q.empty()) shifted.p.back() = in.q.back();
  return decode::verify(rule, shifted, r, scratch);
}

TEST(Sampled, TheSameSeedGivesTheSameValue) {
  EXPECT_EQ(run_sampled(&decode::verify, 7, {}, 200).sequence_p, run_sampled(&decode::verify, 7, {}, 200).sequence_p);
  EXPECT_NE(run_sampled(&decode::verify, 7, {}, 200).sequence_p,
            run_sampled(&decode::verify, 5007, {}, 200).sequence_p);
}

TEST(Sampled, WrongRulesFail) {
  for (const auto rule : {&keep_everything, &residual_from_p, &accept_too_much, &bonus_from_draft}) {
    const SampledTest test = run_sampled(rule, 0);
    EXPECT_LE(test.p_value, 1e-4) << test.first_token_p << " " << test.sequence_p;
  }
}

TEST(Sampled, StopsByTheClockButTestsEveryContext) {
  const specdec::testing::ManualClock clock(0, 10);
  Model target(16, random_logits(1)), draft(16, random_logits(2));
  SampledOptions o;
  o.seconds = 1;
  const std::vector<std::vector<int32_t>> contexts = {{0}, {1}, {2}};
  EXPECT_EQ(sampled_test({target, draft}, contexts, o, clock).runs, 3 * o.batch);
  EXPECT_EQ(sampled_test({target, draft}, {}, o, clock).p_value, 1);
}

// A stand-in for drafting and verifying on the GPU: counts the steps that it is offered, and accepts none, so that the
// host runs them.
class OfferedRounds final : public decode::RoundRunner {
 public:
  bool takes(std::span<const decode::RoundSlot> slots) override {
    ++(slots[0].k > 0 ? drafting : plain);
    return false;
  }
  bool run(std::span<const decode::RoundSlot>, std::span<decode::RoundOutcome>, decode::RoundSeconds&) override {
    return false;
  }
  int drafting = 0, plain = 0;
};

struct OnDevice final : decode::ForwardingModel {
  OnDevice(decode::CausalModel& model, decode::RoundRunner& runner) : ForwardingModel(model), runner_(runner) {}
  decode::RoundRunner* rounds() override { return &runner_; }

 private:
  decode::RoundRunner& runner_;
};

// The gate must test and time the same steps that a server runs: if the target can draft and verify on the GPU (in
// rounds), so must the gate.
TEST(Gate, TestsAndTimesRounds) {
  const specdec::testing::ManualClock clock(0, 1e-6);
  Model target(9, random_logits(1), 400), draft(9, random_logits(2), 400);
  const std::vector<TokenRow> rows = {prompt("a", {1, 2})};
  const std::vector<std::vector<int32_t>> prompts = {{1, 2}};
  const auto offered = [&](const auto& run) {
    OfferedRounds rounds;
    OnDevice on_device(target, rounds);
    run(decode::ModelPair{on_device, draft});
    return std::pair(rounds.drafting > 0, rounds.plain > 0);
  };
  const std::pair both(true, true);
  decode::RolloutOptions greedy;
  greedy.k = 3;
  EXPECT_EQ(offered([&](const auto& pair) { compare_greedy(pair, rows, greedy, unit_roundoff("fp32")); }), both);
  SampledOptions sampled;
  sampled.runs = 40;
  EXPECT_TRUE(offered([&](const auto& pair) { sampled_test(pair, prompts, sampled, clock); }).first);
  EXPECT_EQ(offered([&](const auto& pair) { measure_costs(pair, prompts, {.max_k = 2}, clock); }), both);
  SpeedupOptions speedups;
  speedups.speculation.k = 3;
  EXPECT_EQ(offered([&](const auto& pair) { measure_speedup(pair, prompts, speedups, {clock, IdleMeter()}); }), both);
}

}  // namespace
}  // namespace specdec::deploy
