#include "distill/settings/defaults.h"

#include <gtest/gtest.h>

namespace specdec::distill {
namespace {

TEST(Defaults, RateFallsWithWidthAndForWhatIsTrained) {
  EXPECT_NEAR(default_learning_rate(64, false), 0.012, 1e-12) << "measured: tests/bench/distill_defaults.py";
  EXPECT_NEAR(default_learning_rate(1024, false) * 16, default_learning_rate(64, false), 1e-12);
  EXPECT_EQ(default_learning_rate(16, false), default_learning_rate(64, false));
  EXPECT_NEAR(default_learning_rate(128, true) * 3, default_learning_rate(128, false), 1e-12);
}

TEST(Defaults, AShortRunGetsSmallStepsAndALongOneLargeSteps) {
  const StepCost cost{0.005, 1e-5, 0};  // costs of a small model, in seconds
  const auto step_tokens = [&](double seconds) { return default_step_tokens({.seconds = seconds}, cost); };
  EXPECT_EQ(step_tokens(1), kLeastStepTokens);
  EXPECT_EQ(step_tokens(40), 2048);
  EXPECT_EQ(step_tokens(36000), kMostStepTokens);
  for (double seconds = 1; seconds < 1e5; seconds *= 1.5) {
    const int64_t tokens = step_tokens(seconds);
    EXPECT_LE(tokens, step_tokens(1.5 * seconds));
    if (tokens == kLeastStepTokens) continue;
    EXPECT_GE(tokens_in_run({.seconds = seconds}, cost, tokens) / static_cast<double>(tokens), kWantedSteps);
  }
  EXPECT_LE(default_step_tokens({.seconds = 40}, {0.005, 1e-4, 0}), step_tokens(40)) << "a slower machine";
}

TEST(Defaults, TheNearestLimitCounts) {
  const StepCost cost{0, 1e-6, 0};
  EXPECT_EQ(default_step_tokens({.tokens = 1e5}, cost), kLeastStepTokens) << "three epochs of little data";
  EXPECT_EQ(default_step_tokens({.tokens = 3e6}, cost), 2048);
  EXPECT_EQ(default_step_tokens({.seconds = 1e6, .tokens = 3e6}, cost), 2048);
  EXPECT_EQ(default_step_tokens({.steps = 7}, cost), kStepTokensOfGivenSteps);
}

TEST(Defaults, TheTargetsAnswersCostTheFirstEpochMore) {
  const StepCost cost{0, 1e-3, 1e-3};
  EXPECT_NEAR(tokens_in_run({.seconds = 10, .training_tokens = 1e6}, cost, 512), 5000, 1);
  EXPECT_NEAR(tokens_in_run({.seconds = 10, .training_tokens = 1000}, cost, 512), 9000, 1);
}

TEST(Defaults, ALargeVocabularyIsTakenInParts) {
  EXPECT_EQ(batch_shape(4096, 512).accumulate, 1);
  const BatchShape shape = batch_shape(4096, 151936);
  EXPECT_EQ(shape.batch_tokens * shape.accumulate, 4096);
  EXPECT_EQ(shape.batch_tokens, kLeastStepTokens);
  EXPECT_EQ(batch_shape(8192, 32000).batch_tokens, 2048);
}

TEST(Defaults, MeasuringIsPaidForByTheRun) {
  const double flop = flop_of_run({.seconds = 100}, 1e9, 1e6, 1e5);
  EXPECT_NEAR(flop, 1e11, 1);
  EXPECT_EQ(rows_for(kFirstEvaluationShare * 1e13, 1e9, 4), 300);
  EXPECT_EQ(rows_for(0, 1e9, 4), 50) << "what takes a second is free";
  EXPECT_EQ(rows_for(0, 1e12, 4), 4);
  EXPECT_EQ(evaluations_for(1e15, 1e13), 10);
  EXPECT_EQ(evaluations_for(1e15, 2.1e13), 4);
  EXPECT_EQ(evaluations_for(1e15, 1e15), 2);
  EXPECT_EQ(evaluations_for(0, 1e9), 10);
  EXPECT_GT(rows_for(std::numeric_limits<double>::infinity(), 1, 4), int64_t{1} << 40);
  EXPECT_NEAR(flop_of_run({.steps = 10, .step_tokens = 100}, 0, 1, 1), 4000, 1e-6);
}

}  // namespace
}  // namespace specdec::distill
