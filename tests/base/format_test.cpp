#include "base/format.h"

#include <gtest/gtest.h>

#include <limits>

namespace specdec {
namespace {

TEST(Format, CutsNothingOff) {
  EXPECT_EQ(format("%s %d", std::string(1000, 'x').c_str(), 7), std::string(1000, 'x') + " 7");
  EXPECT_EQ(format("nothing"), "nothing");
}

TEST(Format, WritesNumbersAndIntervals) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(decimals(0.51249), "0.512");
  EXPECT_EQ(decimals(-2, 0), "-2");
  EXPECT_EQ(decimals(kNone), "–");
  EXPECT_EQ(signed_decimals(0.01, 2), "+0.01");
  EXPECT_EQ(signed_decimals(-0.01, 2), "-0.01");
  EXPECT_EQ(signed_decimals(std::numeric_limits<double>::infinity()), "–");
  EXPECT_EQ(interval_text({0.25, 0.5}), "[0.250, 0.500]");
  EXPECT_EQ(interval_text({0.25, kNone}, 2), "[0.25, –]");
  EXPECT_EQ(signed_interval_text({-0.01, 0.02}), "[-0.010, +0.020]");
  EXPECT_EQ(number_text(86400), "86400");
  EXPECT_EQ(number_text(0.01), "0.01");
  EXPECT_EQ(number_text(1e-38), "1e-38");
}

}  // namespace
}  // namespace specdec
