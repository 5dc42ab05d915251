#include "deploy/validate/speed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/draft_speed.h"
#include "base/error.h"
#include "tests/base/manual_clock.h"
#include "tests/lossless/toy.h"
#include "tests/validate/idle_meter.h"

namespace specdec::deploy {
namespace {

using decode::toy::Model;
using decode::toy::random_logits;
using specdec::testing::IdleMeter;
using specdec::testing::ManualClock;

// A toy model whose passes take `base` seconds plus `row` seconds for each row of logits.
class TimedModel final : public decode::ForwardingModel {
 public:
  TimedModel(Model& model, ManualClock& clock, double base, double row)
      : ForwardingModel(model), clock_(clock), base_(base), row_(row) {}
  void extend(std::span<const decode::Extension> extensions, decode::LogitRows& out) override {
    clock_.now += base_;
    for (const auto& e : extensions) clock_.now += row_ * static_cast<double>(e.num_logits);
    ForwardingModel::extend(extensions, out);
  }

 private:
  ManualClock& clock_;
  double base_, row_;
};

AcceptanceCounts counts_with(const std::vector<double>& overlaps) {
  AcceptanceCounts c;
  c.add_step(static_cast<int64_t>(overlaps.size()), static_cast<int64_t>(overlaps.size()), overlaps);
  return c;
}

TEST(Speed, LengthFromOverlaps) {
  const AcceptanceCounts c = counts_with({0.8, 0.5, 0.25});
  EXPECT_DOUBLE_EQ(predicted_length(c, 0), 1);
  EXPECT_DOUBLE_EQ(predicted_length(c, 1), 1.8);
  EXPECT_DOUBLE_EQ(predicted_length(c, 2), 1.8 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(predicted_length(c, 3), 1.8 + 0.4 + 0.1);
  EXPECT_DOUBLE_EQ(predicted_length(c, 4),
                   1.8 + 0.4 + 0.1 + 0.025);  // further positions get the last measured overlap
  EXPECT_DOUBLE_EQ(predicted_length({}, 4), 1);
  EXPECT_NEAR(predicted_length(counts_with({0.8, 0.8, 0.8, 0.8, 0.8}), 5), 3.69, 0.005);  // as in docs/contract.md
}

TEST(Speed, TableAndScheduleFromRecordedCosts) {
  CostTable costs;
  costs.draft_cost = {{1, 0.1}, {2, 0.15}, {4, 0.2}, {8, 0.3}};
  costs.verify_cost = {{1, {{1, 1.0}, {2, 1.1}, {3, 1.2}}},
                       {2, {{1, 1.1}, {2, 1.3}, {3, 1.6}}},
                       {4, {{1, 1.4}, {2, 1.9}, {3, 2.4}}},
                       {8, {{1, 2.0}, {2, 3.0}, {3, 4.0}}}};
  const AcceptanceCounts c = counts_with({0.7, 0.7, 0.7});
  const auto table = speed_table(costs, c);
  ASSERT_EQ(table.size(), 12u);
  EXPECT_DOUBLE_EQ(table[0].speedup, 1.7 / (0.1 + 1.0));
  EXPECT_DOUBLE_EQ(table[2].speedup, (1 + 0.7 + 0.49 + 0.343) / (0.3 + 1.2));
  EXPECT_EQ(table[5].batch, 2);
  EXPECT_EQ(table[5].k, 3);
  // Predicted speed-ups: 1.68 (2.19 / 1.3) for K = 2 and 1.689 (2.533 / 1.5) for K = 3 at batch 1; 1.36, 1.37, 1.24 for
  // K = 1, 2, 3 at batch 2; 1.0625, 0.95, … at batch 4; all below 1 at batch 8.
  const ScheduleRanges expected = {{1, 1, 3}, {2, 3, 2}, {4, 7, 1}, {8, 8, 0}};
  EXPECT_EQ(ranges_of(speed_schedule(table)), expected);
  EXPECT_NEAR(speed_schedule(table)[3].speedup, 1.7 / 2.3, 1e-9) << "the figure that speaks against drafting";
  EXPECT_EQ(best_k(table), 3);
}

TEST(Speed, BreakEvenIsTheLeastAcceptanceThatPays) {
  CostTable costs;
  costs.draft_cost = {{1, 0.1}, {8, 0.5}, {16, 1}};
  costs.verify_cost = {{1, {{1, 1.0}}}, {8, {{1, 1.1}, {2, 1.2}}}, {16, {{1, 1.0}, {4, 1.0}}}};
  const auto least = break_even(costs);
  EXPECT_NEAR(least.at(1), 0.1, 1e-9);  // 1 + α > 0.1 + 1.0
  EXPECT_NEAR(least.at(8), 0.6, 1e-9);  // K = 1: 1 + α > 1.6; K = 2 would need more: 1 + α + α² > 2.2
  EXPECT_EQ(least.count(16), 0u);       // the draft is as slow as the target
}

TEST(Speed, PredictsFromGivenCosts) {
  const EngineCosts given = parse_engine_costs("c=0.05,v=1.1,batch=8");
  EXPECT_EQ(given.batch, 8);
  const auto p = predicted(given, counts_with({0.8, 0.7, 0.6}), 0.5, 3);
  EXPECT_EQ(p.k, 3);
  EXPECT_NEAR(p.speedup, (1 + 0.8 + 0.56 + 0.336) / (3 * 0.05 + 1.1), 1e-9);
  EXPECT_NEAR(*p.break_even, 0.1375, 0.02);
  EXPECT_NEAR(predicted(given, {}, 0.5, 1).speedup, 1.5 / 1.15, 1e-12);  // without roll-outs, alpha is used
  for (const char* bad :
       {"", "c=0.1", "v=1", "c=0,v=1", "c=x,v=1", "c=0.1,v=1,batch=1.5", "c=0.1,v=1,k=2", "c=0.1 v=1"})
    EXPECT_THROW(parse_engine_costs(bad), Error) << bad;
}

TEST(Speed, ScheduleJoinsNeighbours) {
  const std::vector<ValidationReport::TableRow> table = {{1, 1, 1.1}, {1, 2, 1.5}, {2, 1, 1.2},
                                                         {2, 2, 1.4}, {4, 1, 0.9}, {4, 2, 1.0}};
  const ScheduleRanges expected = {{1, 3, 2}, {4, 4, 0}};
  EXPECT_EQ(ranges_of(speed_schedule(table)), expected);
  EXPECT_DOUBLE_EQ(speed_schedule(table)[0].speedup, 1.4) << "of neighbours the figure that says least for drafting";
  EXPECT_FALSE(speed_schedule(table)[0].measured);
  EXPECT_TRUE(speed_schedule({}).empty());
  EXPECT_EQ(best_k({}), 1);
  EXPECT_EQ(best_k({{1, 1, 0.8}, {1, 2, 0.7}, {2, 2, 3.0}}), 1);  // the smallest loss at batch 1
}

const std::vector<ValidationReport::TableRow> kPromising = {{1, 1, 1.1}, {1, 2, 1.2}, {2, 2, 1.3}, {4, 2, 1.05}};

// The measurement decides batch 1. A draft without a gain there is not used at any batch size, whatever was predicted.
TEST(Schedule, ALosingDraftDraftsNowhere) {
  for (const MeasuredSpeed& measured :
       {MeasuredSpeed{2, {0.912, {0.873, 0.953}, 8}, 1.18}, MeasuredSpeed{2, {1.02, {0.98, 1.06}, 8}, 1.18},
        MeasuredSpeed{2, {1.5, {1.4, 1.6}, 8}, 1.18, true}, MeasuredSpeed{2, {1.5, {1.4, 1.6}, 3}, 1.18}}) {
    const auto schedule = speed_schedule(kPromising, measured);
    EXPECT_EQ(ranges_of(schedule), (ScheduleRanges{{1, 1, 0}, {2, 4, 0}})) << measured.speedup.value;
    EXPECT_TRUE(schedule[0].measured);
    EXPECT_EQ(schedule[0].figure_k, 2);
    EXPECT_EQ(schedule[0].speedup, measured.speedup.value);
    EXPECT_EQ(schedule[0].ci.high, measured.speedup.ci.high);
    for (const ScheduleRow& row : schedule) EXPECT_FALSE(row.validated());
    EXPECT_FALSE(schedule[1].measured);
  }
}

TEST(Schedule, OnlyAMeasuredGainIsValidated) {
  const auto schedule = speed_schedule(kPromising, MeasuredSpeed{2, {1.14, {1.08, 1.2}, 8}, 1.2});
  EXPECT_EQ(ranges_of(schedule), (ScheduleRanges{{1, 1, 2}, {2, 3, 2}, {4, 4, 0}}));
  EXPECT_TRUE(schedule[0].validated());
  EXPECT_FALSE(schedule[1].validated());
  EXPECT_NEAR(schedule[1].speedup, 1.3 * 0.95, 1e-9) << "scaled by what the measurement lost against its prediction";
  EXPECT_NEAR(schedule[2].speedup, 1.05 * 0.95, 1e-9);
  EXPECT_NEAR(speed_schedule(kPromising, MeasuredSpeed{2, {1.4, {1.3, 1.5}, 8}, 1.2})[1].speedup, 1.05, 1e-9)
      << "joined, and never scaled up";
  EXPECT_EQ(ranges_of(speed_schedule({{1, 2, 1.2}, {4, 2, 1.1}}, MeasuredSpeed{2, {1.2, {1.1, 1.3}, 8}, 1.2})),
            (ScheduleRanges{{1, 1, 2}, {2, 4, 2}}));
}

// Only model passes advance the clock, so the expected costs are exact.
TEST(Speed, CostsOfTimedModels) {
  ManualClock clock;
  Model target_model(5, random_logits(1), 400), draft_model(5, random_logits(2), 400);
  TimedModel target(target_model, clock, 1.0, 0.25), draft(draft_model, clock, 0.1, 0.01);
  CostOptions o;
  o.batches = {1, 2};
  o.max_k = 3;
  o.repetitions = 4;
  o.seconds_per_batch = 1e9;
  const std::vector<std::vector<int32_t>> prompts = {{0, 1, 2}, {3, 4}};
  const CostTable costs = measure_costs({target, draft}, prompts, o, clock);
  EXPECT_NEAR(costs.plain_seconds.at(1), 1.25, 1e-9);
  EXPECT_NEAR(costs.plain_seconds.at(2), 1.5, 1e-9);
  EXPECT_NEAR(costs.draft_cost.at(1), 0.11 / 1.25, 1e-9);
  EXPECT_NEAR(costs.draft_cost.at(2), 0.12 / 1.5, 1e-9);
  for (int k = 1; k <= 3; ++k) {
    EXPECT_NEAR(costs.verify_cost.at(1).at(k), (1 + 0.25 * (k + 1)) / 1.25, 1e-9);
    EXPECT_NEAR(costs.verify_cost.at(2).at(k), (1 + 0.5 * (k + 1)) / 1.5, 1e-9);
  }
  EXPECT_EQ(target_model.open_sequences(), 0u);
  EXPECT_EQ(draft_model.open_sequences(), 0u);
}

TEST(Speed, LongPromptsAreCutAndTinyContextsRefused) {
  ManualClock clock;
  Model target(5, random_logits(1), 40), draft(5, random_logits(2), 40);
  CostOptions o;
  o.max_k = 3;
  o.repetitions = 2;
  const std::vector<std::vector<int32_t>> prompts = {std::vector<int32_t>(200, 1)};
  EXPECT_EQ(measure_costs({target, draft}, prompts, o, clock).verify_cost.size(),
            0u);  // no time passes, so nothing can be measured
  Model small(5, random_logits(1), 8);
  EXPECT_THROW(measure_costs({small, draft}, prompts, o, clock), Error);
  EXPECT_THROW(measure_costs({target, draft}, {}, o, clock), Error);
}

// The draft equals the target, so every token is accepted and the measured ratio is exactly tau / (K·c + v).
TEST(Speed, MeasuredSpeedupIsThePredictedOne) {
  ManualClock clock;
  Model target_model(5, random_logits(1), 400), draft_model(5, random_logits(1), 400);
  TimedModel target(target_model, clock, 1.0, 0.0), draft(draft_model, clock, 0.1, 0.0);
  SpeedupOptions o;
  o.speculation.k = 3;
  o.tokens = 40;  // ten steps of four tokens
  const std::vector<std::vector<int32_t>> prompts = {{0, 1}, {2}, {3, 4, 1}};
  const SpeedupRuns runs = measure_speedup({target, draft}, prompts, o, {clock, IdleMeter()});
  ASSERT_EQ(runs.normal.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(runs.normal[i], 3 * 40 * 1.0, 1e-9);  // three runs of 40 tokens, 1 s each
    EXPECT_NEAR(runs.speculative[i], 3 * 10 * 1.3, 1e-9);
  }
  const Estimate s = speedup(runs.normal, runs.speculative);
  EXPECT_NEAR(s.value, 4 / (3 * 0.1 + 1), 1e-9);
  EXPECT_EQ(s.n, 3);
}

// Another process takes the CPU for a second now and then. Short runs are repeated, and the shortest is taken.
TEST(Speed, LostTimeSlicesDoNotCount) {
  ManualClock clock;
  Model target_model(5, random_logits(1), 400), draft_model(5, random_logits(1), 400);
  int64_t passes = 0;
  target_model.before_pass = [&](std::span<const decode::Extension>) {
    if (++passes % 97 == 0) clock.now += 1;
  };
  TimedModel target(target_model, clock, 1e-3, 0.0), draft(draft_model, clock, 1e-4, 0.0);
  SpeedupOptions o;
  o.speculation.k = 3;
  o.tokens = 40;
  const std::vector<std::vector<int32_t>> prompts = {{0, 1}, {2}, {3, 4, 1}};
  const SpeedupRuns runs = measure_speedup({target, draft}, prompts, o, {clock, IdleMeter()});
  EXPECT_GT(passes, 500);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(runs.normal[i], 3 * 40e-3, 1e-9);
    EXPECT_NEAR(runs.speculative[i], 3 * 13e-3, 1e-9);
  }
  EXPECT_EQ(repeats_of(0.2), 3);
  EXPECT_EQ(repeats_of(0.3), 1);
}

TEST(Speed, RatioOfSumsNotMeanOfRatios) {
  const std::vector<double> normal = {10, 1}, speculative = {5, 2};
  const Estimate s = speedup(normal, speculative);
  EXPECT_NEAR(s.value, 11.0 / 7, 1e-12);
  EXPECT_NEAR(s.ci.low, 0.5, 1e-9);
  EXPECT_NEAR(s.ci.high, 2.0, 1e-9);
}

// With few prompts, plain percentiles of the bootstrap give too narrow an interval. So the percentiles are widened by
// Student's t distribution with n − 1 degrees of freedom.
TEST(Speed, TheIntervalOfFewPromptsIsWide) {
  const std::vector<double> normal = {1.0, 1.1, 0.9, 1.2, 0.8, 1.05, 0.95, 1.0}, speculative(8, 1.0);
  const Estimate s = speedup(normal, speculative);
  const double deviation = std::sqrt(variance(normal) / 8);
  EXPECT_NEAR((s.ci.high - s.ci.low) / 2, 2.14 * deviation,
              0.15 * deviation);  // Student's t at 0.965 with 7 degrees of freedom
  std::vector<double> many_normal, many(800, 1.0);
  for (int i = 0; i < 100; ++i) many_normal.insert(many_normal.end(), normal.begin(), normal.end());
  const Estimate wide = speedup(many_normal, many);
  EXPECT_NEAR((wide.ci.high - wide.ci.low) / 2, 1.812 * std::sqrt(variance(many_normal) / 800), 0.0005);
}

TEST(Speed, PromptsWithoutAnUndisturbedRunAreLeftOut) {
  TimedPairs pairs;
  for (int i = 0; i < 6; ++i) {
    pairs.runs.emplace_back();
    pairs.runs.back().normal.seconds = i + 1, pairs.runs.back().speculative.seconds = 1;
  }
  pairs.clean = {true, false, true, true, false, false};  // three prompts, each timed twice
  const SpeedupRuns runs = sum_by_prompt(pairs, 3);
  EXPECT_EQ(runs.normal, (std::vector<double>{1 + 4, 3}));
  EXPECT_EQ(runs.speculative, (std::vector<double>{2, 1}));
  pairs.machine.busy = true;
  EXPECT_EQ(sum_by_prompt(pairs, 3).normal, (std::vector<double>{5, 7, 9}))
      << "a busy machine's times are shown, and decide nothing";
}

TEST(Speed, PromptsSpreadOverConversations) {
  std::vector<TokenRow> rows(10);
  for (size_t i = 0; i < 10; ++i) {
    rows[i].conversation = i < 6 ? "a" : "c" + std::to_string(i);
    rows[i].tokens = {1, 2, 3};
    rows[i].prompt_tokens = 2;
  }
  EXPECT_EQ(choose_prompts(rows, 3), (std::vector<size_t>{0, 6, 8}));  // one each of conversations a, c6 and c8
  EXPECT_EQ(choose_prompts(rows, 7), (std::vector<size_t>{0, 1, 2, 6, 7, 8, 9}));
  EXPECT_EQ(choose_prompts(rows, 99).size(), 10u);
  EXPECT_EQ(prompt_of(rows[0]), (std::vector<int32_t>{1, 2}));
  rows[0].prompt_tokens = 0;
  EXPECT_EQ(prompt_of(rows[0]), (std::vector<int32_t>{1}));
}

}  // namespace
}  // namespace specdec::deploy
