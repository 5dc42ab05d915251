#include "monitor/baseline.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/monitor/traffic.h"

namespace specdec::monitor {
namespace {

TEST(Baselines, ComeFromTheRollOuts) {
  ValidationReport report;
  EXPECT_THROW(baselines(report), Error);
  for (int i = 0; i < 100; ++i) report.rollout.counts.add_step(2, 2, {0.8, 0.6});
  report.rollout.alpha = {0.7, {0.6671, 0.7329}, 100};
  report.alpha = {0.9, {0.9, 0.9}, 100};
  auto all = baselines(report).strata;
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[""].overlap.size(), 2u);
  EXPECT_NEAR(all[""].overlap[1], 0.6, 1e-9);
  EXPECT_EQ(all[""].mean, 0.7) << "the teacher-forced alpha is another statistic";
  EXPECT_NEAR(all[""].standard_error, 0.02, 1e-4);
  EXPECT_EQ(all[""].share, 1);
  report.segments.push_back({"code", {0.5, {0.4, 0.6}, 30}, report.rollout, 0});
  report.segments.push_back({"unmeasured", {0.5, {0.4, 0.6}, 10}, {}, 0});
  all = baselines(report).strata;
  EXPECT_EQ(all.size(), 2u);
  EXPECT_EQ(all["code"].share, 0.75);
  EXPECT_EQ(all[""].share, 0);
}

}  // namespace
}  // namespace specdec::monitor
