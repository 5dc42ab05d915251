#include "distill/settings/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace specdec::distill {
namespace {

TEST(Schedule, WarmsUpAndDecaysOverTheSteps) {
  const ScheduleOptions o{1e-3, 0.1, 0.1, 100, 0};
  EXPECT_NEAR(learning_rate(o, 0, 0), 1e-4, 1e-12);
  EXPECT_NEAR(learning_rate(o, 4, 0), 5e-4, 1e-12);
  EXPECT_NEAR(learning_rate(o, 9, 0), 1e-3, 1e-12);
  EXPECT_NEAR(learning_rate(o, 10, 0), 1e-3, 1e-12);
  EXPECT_NEAR(learning_rate(o, 55, 0), 1e-3 * 0.55, 1e-9);  // half-way through the cosine: the mean of 1 and 0.1
  EXPECT_NEAR(learning_rate(o, 100, 0), 1e-4, 1e-12);
  EXPECT_NEAR(learning_rate(o, 1000, 0), 1e-4, 1e-12);
  for (int64_t s = 11; s < 100; ++s) EXPECT_LT(learning_rate(o, s, 0), learning_rate(o, s - 1, 0));
}

TEST(Schedule, FollowsTheClockWhereTimeIsTheLimit) {
  const ScheduleOptions o{1e-3, 0.1, 0.1, 0, 200};
  EXPECT_GT(learning_rate(o, 0, 0), 0);
  EXPECT_LE(learning_rate(o, 0, 0), 1e-4);
  EXPECT_NEAR(learning_rate(o, 500, 10), 5e-4, 1e-9);
  EXPECT_LE(learning_rate(o, 2, 100), 3.1e-4) << "few steps are still warm-up, however slow they are";
  EXPECT_NEAR(learning_rate(o, 500, 110), 1e-3 * 0.55, 1e-9);
  EXPECT_NEAR(learning_rate(o, 500, 200), 1e-4, 1e-12);
}

TEST(Schedule, ARunOfFewStepsReachesItsRate) {
  ScheduleOptions o{1e-3, 0.1, 0.03, 0, 200};
  const auto highest = [&] {
    double most = 0;
    for (int64_t step = 0; step < 19; ++step)
      most = std::max(most, learning_rate(o, step, 200.0 * static_cast<double>(step) / 19));
    return most;
  };
  EXPECT_LT(highest(), 6.5e-4) << "a warm-up of ten steps meets the decay";
  o.expected_steps = 19;
  EXPECT_GT(highest(), 9e-4);
  o.expected_steps = 1000;
  EXPECT_LE(learning_rate(o, 2, 100), 3.1e-4) << "a long run has all of its warm-up";
}

TEST(Schedule, TheNearerOfTwoLimitsDecays) {
  const ScheduleOptions o{1e-3, 0.1, 0.0, 1000, 100};
  EXPECT_NEAR(learning_rate(o, 20, 100), 1e-4, 1e-9);
  EXPECT_NEAR(learning_rate(o, 1000, 5), 1e-4, 1e-9);
}

}  // namespace
}  // namespace specdec::distill
