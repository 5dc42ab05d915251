// Tests how a time limit is divided, and the command that a run suggests.
#include "distill/settings/time_plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/shell.h"
#include "distill/settings/repeat_flags.h"
#include "tests/base/manual_clock.h"

namespace specdec::distill {
namespace {

using specdec::testing::ManualClock;
using Stage = TimePlan::Stage;
constexpr Stage kStages[] = {Stage::kLayers, Stage::kAnswers, Stage::kStart, Stage::kStep};

// Simulates the stages before the first training step. Each stage uses the fraction `use` of its allowed time. Returns
// the time when the last stage ends.
double prepared_after(double limit, double loading, double use) {
  ManualClock clock(1000);
  TimePlan plan(limit, 1, clock);
  clock.now += loading;
  plan.set_loaded();
  for (const Stage stage : kStages) clock.now += use * plan.seconds_for(stage);
  return plan.elapsed();
}

TEST(TimePlan, PreparingAndJudgingHaveATenthOrTwentySecondsOrAThird) {
  const ManualClock clock;
  for (const auto& [limit, most] :
       std::vector<std::pair<double, double>>{{3, 1}, {60, 20}, {150, 20}, {200, 20}, {600, 60}, {7200, 720}}) {
    EXPECT_NEAR(TimePlan(limit, 1, clock).judging_seconds(), most, 1e-9) << limit;
    EXPECT_NEAR(prepared_after(limit, 0.1 * most, 1), most, 1e-6) << limit << ": whatever the stages could use";
    EXPECT_LT(prepared_after(limit, 0.1 * most, 0.5), most) << limit;
  }
}

TEST(TimePlan, AStageHasWhatEarlierOnesLeft) {
  ManualClock clock;
  TimePlan plan(60, 1, clock);
  clock.now = 4;
  plan.set_loaded();
  EXPECT_NEAR(plan.seconds_for(Stage::kLayers), 3.2, 1e-9);
  EXPECT_NEAR(plan.seconds_for(Stage::kAnswers), 9.6, 1e-9) << "the layers took no time";
  clock.now = 30;  // as if a stage had taken far too long
  EXPECT_NEAR(plan.seconds_for(Stage::kStep), 0.8, 1e-9) << "later ones still have a little";
}

TEST(TimePlan, LoadingThatTakesAllLeavesTheStagesALittle) {
  EXPECT_NEAR(prepared_after(60, 50, 1), 56, 1e-6) << "six seconds of the twenty";
}

TEST(TimePlan, TrainingHasTheRestAndAtLeastAThird) {
  ManualClock clock;
  const TimePlan plan(60, 1, clock);
  clock.now = 20;
  EXPECT_NEAR(plan.training_seconds(8), 32, 1e-9);
  EXPECT_NEAR(plan.training_seconds(100), 20, 1e-9) << "judging is not given more than it may take";
  clock.now = 300;
  EXPECT_NEAR(plan.training_seconds(8), 20, 1e-9);
  const TimePlan sample(60, 0.25, clock);
  EXPECT_NEAR(sample.judging_seconds(), 24, 1e-9) << "a sample is measured on the rows of the whole run";
  EXPECT_NEAR(sample.training_seconds(8), 51, 1e-9);
}

TEST(TimePlan, WithoutALimitNothingEnds) {
  ManualClock clock;
  TimePlan plan(0, 1, clock);
  clock.now = 1e6;
  plan.set_loaded();
  EXPECT_FALSE(plan.is_limited());
  for (const Stage stage : kStages) EXPECT_TRUE(std::isinf(plan.seconds_for(stage)));
  EXPECT_TRUE(std::isinf(plan.judging_seconds()));
  EXPECT_EQ(plan.training_seconds(8), 0);
}

TEST(TimePlan, DurationsAreThoseThatPeopleGive) {
  for (const auto& [seconds, text] : std::vector<std::pair<double, std::string>>{{1, "10s"},
                                                                                 {61, "70s"},
                                                                                 {91, "2m"},
                                                                                 {601, "15m"},
                                                                                 {5300, "90m"},
                                                                                 {5500, "2h"},
                                                                                 {17000, "5h"},
                                                                                 {18001, "6h"}})
    EXPECT_EQ(duration_text(usual_duration(seconds)), text) << seconds;
  EXPECT_EQ(duration_text(80), "80s");
  EXPECT_EQ(duration_text(0.5), "0.5s");
}

TEST(RepeatFlags, TheCommandKeepsEveryFlagThatWasGiven) {
  DistillOptions o;
  o.target = "a b", o.data = "traffic", o.draft = "prune:2", o.out = "run";
  EXPECT_EQ(shell_words(repeated_command(o)),
            "specdec distill --target 'a b' --data traffic --draft prune:2 --out run");
  o.time_limit_seconds = 80;
  o.device.dtype = "fp32", o.device.threads = 2, o.device.seed = 7;
  o.learning_rate = 1e-4, o.recompute = true, o.teacher = "labels:x";
  EXPECT_EQ(shell_words(repeated_command(o)),
            "specdec distill --target 'a b' --data traffic --draft prune:2 --out run --teacher labels:x --lr 0.0001 "
            "--recompute --time-limit 80s --dtype fp32 --seed 7 --threads 2");
  EXPECT_EQ(shell_words(flags_of_gate(o)), "--threads 2") << "the gate chooses its dtype itself";
  EXPECT_EQ(longer_run(o, 4).time_limit_seconds, 320);
  EXPECT_EQ(longer_run({}, 2).epochs, 6) << "three epochs are the default";
}

}  // namespace
}  // namespace specdec::distill
