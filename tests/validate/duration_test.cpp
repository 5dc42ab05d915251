#include "deploy/validate/duration.h"

#include <gtest/gtest.h>

namespace specdec::deploy {
namespace {

const RolloutCost kCost{.requests = 8, .one_token = 4, .more_tokens = 8};  // the batch takes 0.5 s per token

TEST(Duration, ARollOutReadsPromptsAndAddsTokens) {
  EXPECT_NEAR(kCost.token(), 0.5, 1e-12);
  EXPECT_NEAR(kCost.seconds(8, 1), 4, 1e-12);
  EXPECT_NEAR(kCost.seconds(16, 65), 2 * (4 + 32), 1e-12);
  EXPECT_EQ((RolloutCost{.requests = 8, .one_token = 4, .more_tokens = 3}.token()), 0) << "a disturbed measurement";
}

TEST(Duration, EveryPartCountsOnlyWhatItMeasures) {
  const ValidateOptions o;
  const ExpectedTime quick = expected_time(kCost, o, {.rows = 35, .acceptance = true});
  EXPECT_GT(quick.acceptance, 0);
  EXPECT_EQ(quick.rollout + quick.speed + quick.lossless, 0) << "no answers are written";
  const ValidationWork all{
      .rows = 1000, .answers_anew = true, .acceptance = true, .rollout = true, .speed = true, .lossless = true};
  const ExpectedTime whole = expected_time(kCost, o, all);
  EXPECT_GE(whole.rollout, kCost.seconds(1000, 64)) << "the verdict on acceptance may need them all";
  ValidationWork kept = all;
  kept.answers_anew = false;
  EXPECT_NEAR(expected_time(kCost, o, kept).rollout * 1000 / 256, whole.rollout, 1e-6);
  ValidateOptions small = o;
  small.max_requests = 32, small.speed_prompts = 2, small.speed_tokens = 16;
  kept.rows = 32;
  const ExpectedTime less = expected_time(kCost, small, kept);
  EXPECT_LT(less.speed, whole.speed);
  EXPECT_LT(less.rollout, whole.rollout);
  EXPECT_NEAR(less.total(), less.acceptance + less.rollout + less.speed + less.lossless, 1e-9);
}

TEST(Duration, TheLineNamesTimesAndFlags) {
  const ExpectedTime time{.rollout = 300, .speed = 45.2};
  EXPECT_EQ(time.text(),
            "this takes about 6 min here (roll-outs 5 min, speed 46 s); smaller --max-requests, "
            "--rollout-requests, --rollout-tokens and --speed-prompts take less");
}

}  // namespace
}  // namespace specdec::deploy
