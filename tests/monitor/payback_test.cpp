#include "monitor/facts/payback.h"

#include <gtest/gtest.h>

#include "tests/base/sample_report.h"

namespace specdec::monitor {
namespace {

Policy costs(double gpu_hours) {
  Policy p;
  p.gpu_hours = gpu_hours;
  p.horizon_days = 10;
  p.tokens_per_second = 1000;
  p.tokens_per_request = 200;
  p.gpus = 4;
  return p;
}

// 50,000 requests per day of 200 tokens at 1,000 tokens/s on 4 GPUs take 11.11 GPU hours per day. Raising the speed-up
// from 1.2 to 1.5 saves a fifth of that.
TEST(Payback, WhatItCostsHasToComeBackWithinTheHorizon) {
  const Payback p = payback(costs(22), 50000, 1.2, 1.5);
  EXPECT_NEAR(p.gain_gpu_hours, 22.222, 0.001);
  EXPECT_TRUE(p.pays) << p.text;
  EXPECT_FALSE(payback(costs(22.3), 50000, 1.2, 1.5).pays);
  EXPECT_FALSE(payback(costs(0.1), 50000, 1.5, 1.5).pays) << "nothing to regain";
  EXPECT_LT(payback(costs(1), 50000, 1.5, 1.2).gain_gpu_hours, 0);
  EXPECT_FALSE(payback(costs(1), 50000, 0, 1.5).pays) << "unknown is no reason to spend";
  EXPECT_TRUE(payback(costs(0), 0, 0, 0).pays) << "nobody asked";
}

TEST(Payback, SpeedupFollowsTheOverlaps) {
  ValidationReport r = testing::sample_report({}, {});
  r.rollout.counts = {};
  for (int i = 0; i < 10; ++i) r.rollout.counts.add_step(1, i < 7 ? 1 : 0, {0.7});
  r.best_k = 1;
  r.verify_cost_table.clear();
  // For K = 1 the predicted speed-up is 1.7 / (0.4 + 1.1), the measured one 1.4.
  EXPECT_NEAR(speedup_at(r, 0), 1.4, 1e-12);
  EXPECT_NEAR(speedup_at(r, -0.2), 1.4 * 1.5 / 1.7, 1e-12);
  r.has_speed = false;
  EXPECT_EQ(speedup_at(r, 0), 0);
}

}  // namespace
}  // namespace specdec::monitor
