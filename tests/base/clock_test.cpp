#include "base/clock.h"

#include "tests/base/scratch.h"

namespace specdec {
namespace {

TEST(Clock, UtcDates) {
  EXPECT_EQ(format_utc(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(format_utc(1795262400), "2026-11-21T12:00:00Z");
  EXPECT_EQ(format_utc(951782399), "2000-02-28T23:59:59Z");
  EXPECT_EQ(format_utc(INT64_MAX), "unix 9223372036854775807") << "showing a time never fails";
  EXPECT_EQ(format_utc(INT64_MIN), "unix -9223372036854775808");
}

TEST(Clock, Durations) {
  const auto seconds = [](const std::string& text) { return parse_duration(text, "--x", ErrorKind::kUsage); };
  EXPECT_EQ(seconds("90"), 90);
  EXPECT_EQ(seconds("90s"), 90);
  EXPECT_EQ(seconds("1.5m"), 90);
  EXPECT_EQ(seconds("1h30m"), 5400);
  EXPECT_EQ(seconds("2d"), 172800);
  EXPECT_EQ(seconds("1w1y"), 372 * 86400.0);
  EXPECT_EQ(parse_duration("0", "x", ErrorKind::kConfig, {.zero = true}), 0);
  const auto days = [](const std::string& text) {
    return parse_duration(text, "--x", ErrorKind::kUsage, {.months = true}) / 86400;
  };
  EXPECT_EQ(days("12h"), 0.5);
  EXPECT_EQ(days("8w"), 56);
  EXPECT_EQ(days("1y"), 365);
  EXPECT_NEAR(days("6m"), 182.4, 1e-9);
  for (const char* bad :
       {"", " 1h", "soon", "1x", "h", "-1h", "+1h", "1h ", "infd", "nand", "1e999d", "0", "0h", "4000y", "1hh"}) {
    testing::expect_error(ErrorKind::kUsage, {"--x: expected a time such as 90s, 1h30m or 7d, found '", bad},
                          [&] { seconds(bad); });
    testing::expect_error(ErrorKind::kUsage, {"--x: expected a time such as 12h, 30d, 6m (months) or 1y, found '", bad},
                          [&] { days(bad); });
  }
  for (const char* bad : {"90", "90s"}) testing::expect_error(ErrorKind::kUsage, {bad}, [&] { days(bad); });
}

}  // namespace
}  // namespace specdec
