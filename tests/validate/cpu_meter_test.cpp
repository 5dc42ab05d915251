#include "deploy/validate/cpu_meter.h"

#include <gtest/gtest.h>

namespace specdec::deploy {
namespace {

const std::string kStat =
    "cpu  1000 100 500 9000 50 10 20 30 7 0\n"
    "cpu0 400 50 200 4000 20 4 6 10 7 0\n"
    "cpu1 600 50 300 5000 30 6 14 20 0 0\n"
    "cpu10 1 1 1 1 1 1 1 1 0 0\n"
    "intr 12345 0 0\nctxt 99\n";

// Idle time and I/O wait are not busy time, stolen time is counted separately, and guest time must not be added,
// because user time includes it.
TEST(CpuMeter, ReadsTheCpusOfThisProcess) {
  const auto both = parse_proc_stat(kStat, {0, 1}, 100);
  ASSERT_TRUE(both);
  EXPECT_NEAR(both->busy, (400 + 50 + 200 + 4 + 6 + 600 + 50 + 300 + 6 + 14) / 100.0, 1e-9);
  EXPECT_NEAR(both->stolen, 0.30, 1e-9);
  EXPECT_EQ(both->own, 0);
  EXPECT_NEAR(parse_proc_stat(kStat, {1}, 100)->busy, 9.70, 1e-9);
  EXPECT_NEAR(parse_proc_stat(kStat, {10}, 100)->busy, 0.05, 1e-9);
  EXPECT_NEAR(parse_proc_stat("cpu0 1 2 3 4 5 6 7\n", {0}, 1)->busy, 19, 1e-9) << "kernels that know no steal";
}

TEST(CpuMeter, SaysNothingWhereTheSystemDoesNot) {
  EXPECT_FALSE(parse_proc_stat("", {0}, 100));
  EXPECT_FALSE(parse_proc_stat(kStat, {}, 100));
  EXPECT_FALSE(parse_proc_stat(kStat, {0, 2}, 100)) << "a CPU of ours is not listed";
  EXPECT_FALSE(parse_proc_stat("cpu0 0 0 0 0 0 0 0 0 0 0\n", {0}, 100)) << "a sandbox that makes the file up";
  EXPECT_FALSE(parse_proc_stat("cpu0 a b c d e f g h\n", {0}, 100));
  EXPECT_FALSE(parse_proc_stat("cpu0 1 2 3\ncpux 1 2 3 4 5 6 7 8\n", {0}, 100));
}

TEST(CpuMeter, ThrottlingOfBothVersionsOfCgroups) {
  EXPECT_NEAR(parse_throttled("usage_usec 5\nnr_periods 3\nnr_throttled 1\nthrottled_usec 2500000\n"), 2.5, 1e-9);
  EXPECT_NEAR(parse_throttled("nr_periods 3\nnr_throttled 1\nthrottled_time 2500000000\n"), 2.5, 1e-9);
  EXPECT_EQ(parse_throttled("usage_usec 5\n"), 0);
  EXPECT_EQ(parse_throttled("throttled_usec many"), 0);
  EXPECT_EQ(parse_throttled(""), 0);
}

// Reads the counters of the real system: they must show this process's work and never decrease.
TEST(CpuMeter, TheSystemsOwn) {
  const SystemCpuMeter meter;
  EXPECT_GE(meter.cpus(), 1);
  const auto before = meter.read();
  if (!before) GTEST_SKIP() << "this system does not tell what its CPUs do";
  volatile double sum = 0;
  for (int i = 0; i < 20000000; ++i) sum = sum + i;
  const auto after = meter.read();
  ASSERT_TRUE(after);
  EXPECT_GT(after->own, before->own);
  EXPECT_GE(after->busy, before->busy);
  EXPECT_GE(after->stolen, before->stolen);
}

}  // namespace
}  // namespace specdec::deploy
