#include "cli/child_process.h"

#include <gtest/gtest.h>

#include <csignal>

#include "base/clock.h"
#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

ChildResult run_shell(const std::string& command, double most_seconds) {
  return run_child("/bin/sh", {"-c", command}, {}, {}, most_seconds);
}

TEST(RunChild, AProgramThatEndsInTimeKeepsItsCode) {
  const ChildResult result = run_shell("echo a; exit 7", 60);
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.output, "a\n");
  EXPECT_FALSE(result.late);
}

// The second program ignores SIGTERM; the third closes its stdout before it hangs.
TEST(RunChild, AProgramThatHangsIsKilled) {
  for (const char* command :
       {"echo a; exec sleep 30", "trap '' TERM; echo a; exec sleep 30", "echo a; exec sleep 30 >&-"}) {
    const SystemClock clock;
    const double start = clock.seconds();
    const ChildResult result = run_shell(command, 1);
    EXPECT_LT(clock.seconds() - start, 20) << command;
    EXPECT_TRUE(result.late) << command;
    EXPECT_EQ(result.exit_code, 128 + SIGKILL) << command;
    EXPECT_EQ(result.output, "a\n") << command;
  }
}

TEST(RunChild, StderrIsHandedOnLineByLineAndKept) {
  const testing::Scratch scratch;
  std::vector<std::string> lines;
  const ChildErrors errors{scratch / "log.txt", [&](const std::string& line) { lines.push_back(line); }};
  const ChildResult result =
      run_child("/bin/sh", {"-c", "echo one >&2; echo out; printf 'tw' >&2; printf 'o\\nend' >&2; exit 3"}, errors);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.output, "out\n");
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", "end"}));
  EXPECT_EQ(testing::get(scratch / "log.txt"), "one\ntwo\nend");
}

}  // namespace
}  // namespace specdec::cli
