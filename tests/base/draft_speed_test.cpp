#include "base/draft_speed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/base/scratch.h"

namespace specdec {
namespace {

using namespace specdec::testing;

// Two conversations whose overlaps are 0.8 and 0.5 at the two positions.
DraftSpeed sample_speed() {
  DraftSpeed draft{0.02, 0.1, {{1, 1.0}, {2, 1.05}, {3, 1.1}}, {}};
  AcceptanceCounts one, two;
  one.add_step(2, 2, {0.9, 0.5});
  two.add_step(2, 0, {0.7});
  draft.conversations = {one, two};
  return draft;
}

TEST(DraftSpeed, ChoosesTheBestK) {
  const SpeedPrediction best = predict_speed(sample_speed());
  EXPECT_EQ(best.k, 2);  // speed-ups by K: 1.8 / 1.1 = 1.64, 2.2 / 1.25 = 1.76, 2.4 / 1.4 = 1.71
  EXPECT_NEAR(best.length, 2.2, 1e-12);
  EXPECT_NEAR(best.speedup, 2.2 / 1.25, 1e-12);
  EXPECT_NEAR(predict_speed_with(sample_speed(), 1, 0).speedup, 1.8 / 1.1, 1e-12);
  expect_error(ErrorKind::kInternal, {"K = 4"}, [] { predict_speed_with(sample_speed(), 4, 0); });
  EXPECT_EQ(predict_speed({}).k, 0);
  DraftSpeed unmeasured = sample_speed();
  unmeasured.conversations.clear();
  EXPECT_EQ(predict_speed(unmeasured).k, 0);
}

TEST(DraftSpeed, ShiftsEveryPositionOnTheScaleOfLogOdds) {
  const double shift = log_odds(0.9) - log_odds(0.8);
  const double second = 1 / (1 + std::exp(-(log_odds(0.5) + shift)));
  const SpeedPrediction better = predict_speed_with(sample_speed(), 2, shift);
  EXPECT_NEAR(better.length, 1 + 0.9 + 0.9 * second, 1e-9);
  EXPECT_LE(predict_speed(sample_speed(), 50).length, 4);
  EXPECT_NEAR(predict_speed_with(sample_speed(), 3, -50).length, 1, 1e-6);
}

TEST(DraftSpeed, PaysBack) {
  // At twice the speed every token saves 10 ms, so 360,000 tokens pay back 3600 s.
  EXPECT_NEAR(tokens_to_pay_back(3600, 0.02, 2), 360000, 1e-6);
  EXPECT_TRUE(std::isinf(tokens_to_pay_back(3600, 0.02, 1)));
  EXPECT_TRUE(std::isinf(tokens_to_pay_back(3600, 0.02, 0.7)));
  EXPECT_TRUE(std::isinf(tokens_to_pay_back(3600, 0, 2)));
}

}  // namespace
}  // namespace specdec
