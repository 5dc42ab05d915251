#include "cli/holdout_advice.h"

#include <gtest/gtest.h>

#include <cmath>

namespace specdec::cli {
namespace {

TEST(HoldoutAdvice, NamesTheShareOrAsksForMoreLogs) {
  EXPECT_EQ(holdout_advice(300, 15).warning, "");
  EXPECT_EQ(holdout_advice(100, 3).warning,
            "3 of 100 conversations are held out, and a verdict of distill needs at least 15: give --holdout 0.16, or "
            "more logs");
  EXPECT_EQ(holdout_advice(100, 0).share, 0.16);
  EXPECT_EQ(holdout_advice(32, 0).share, 0.5);
  for (const int64_t few : {31, 1, 0}) {
    EXPECT_EQ(holdout_advice(few, 0).share, 0) << few;
    EXPECT_TRUE(holdout_advice(few, 0).warning.ends_with("needs at least 15: give more logs")) << few;
  }
}

// The advised share, which the split rounds to whole conversations, holds out enough conversations for a verdict.
TEST(HoldoutAdvice, TheShareIsEnough) {
  for (int64_t n = 32; n < 5000; ++n)
    EXPECT_GE(std::llround(holdout_advice(n, 0).share * static_cast<double>(n)), 15) << n;
}

TEST(HoldoutAdvice, TheCommandKeepsItsOtherWords) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(with_holdout({"specdec", "data", "ingest", "a", "--holdout", "0", "--out", "o"}, 0.25),
            (Words{"specdec", "data", "ingest", "--holdout", "0.25", "a", "--out", "o"}));
  EXPECT_EQ(with_holdout({"specdec", "--json", "data", "ingest", "--holdout-count=3", "--", "-a"}, 0.5),
            (Words{"specdec", "--json", "data", "ingest", "--holdout", "0.5", "--", "-a"}));
}

}  // namespace
}  // namespace specdec::cli
