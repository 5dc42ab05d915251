#include "cli/progress_line.h"

#include <gtest/gtest.h>

namespace specdec::cli {
namespace {

struct Screen {
  std::vector<std::string> lines;
  ProgressLine line;
  explicit Screen(bool terminal = false)
      : line(terminal, [this](const std::string& text) { lines.push_back(text); }, 100) {}
};

TEST(ProgressLine, SilentWorkIsRepeatedEveryTwoSeconds) {
  Screen s;
  s.line.show({"loading", 0, 0, "", "model"}, 100);
  EXPECT_TRUE(s.lines.empty()) << "a stage that is over in no time needs no line";
  double last = 100;
  for (double now = 100; now <= 160; now += 0.1) {
    const size_t before = s.lines.size();
    s.line.tick(now);
    if (s.lines.size() == before) continue;
    EXPECT_LE(now - last, 2.01);
    last = now;
  }
  EXPECT_GE(s.lines.size(), 28u);
  EXPECT_EQ(s.lines[4], "loading  for 10s  model\n");
}

TEST(ProgressLine, StagesThatChangeOftenDoNotStartTheTimeAgain) {
  Screen s;
  for (int i = 0; i <= 10; ++i) s.line.show({"stage " + std::to_string(i), 0, 0, "", ""}, 100 + i);
  EXPECT_EQ(s.lines.size(), 5u) << "ten stages of a second each";
}

TEST(ProgressLine, WorkThatIsRepeatedAtTheEndDoesNotFlood) {
  Screen s;
  for (int i = 1; i <= 400; ++i) s.line.show({"speed", std::min(i, 100) * 1.0, 100, "runs", ""}, 100 + 0.01 * i);
  EXPECT_EQ(s.lines.size(), 2u) << "one at the end, one 1.9 s later";
}

TEST(ProgressLine, SaysHowLongItWillTake) {
  Screen s;
  s.line.show({"distill", 0, 100, "steps", ""}, 100);
  s.line.show({"distill", 10, 100, "steps", "loss 2"}, 110);
  s.line.show({"distill", 11, 100, "steps", "loss 2"}, 110.5);
  s.line.show({"distill", 100, 100, "steps", "loss 1"}, 111);
  EXPECT_EQ(s.lines, (std::vector<std::string>{"distill  10 / 100 steps  ETA 1m30s  loss 2\n",
                                               "distill  100 / 100 steps  in 11s  loss 1\n"}));
  s.line.tick(200);
  EXPECT_EQ(s.lines.size(), 2u) << "what has ended is not repeated";
}

TEST(ProgressLine, WorkThatBeganDoneHasNoEtaYet) {
  Screen s(true);
  s.line.show({"ingest", 1.048, 4.139, "MB", "256 rows"}, 100);
  ASSERT_EQ(s.lines.size(), 1u);
  EXPECT_NE(s.lines[0].find("1048 / 4139 kB  for 0s"), std::string::npos) << s.lines[0];
}

// The progress of a small file is shown in kB or B instead of "0 MB".
TEST(ProgressLine, SmallSizesAreNotZeroMegabytes) {
  Screen s;
  s.line.show({"ingest", 0.0, 0.0421, "MB", ""}, 100);
  s.line.show({"ingest", 0.0421, 0.0421, "MB", ""}, 100.1);
  s.line.show({"package", 0.0, 0.000817, "MB", ""}, 101);
  s.line.show({"package", 0.000817, 0.000817, "MB", ""}, 101.1);
  s.line.show({"copy", 0, 23, "MB", ""}, 102);
  s.line.show({"copy", 23, 23, "MB", ""}, 102.1);
  EXPECT_EQ(s.lines, (std::vector<std::string>{"ingest  42 / 42 kB  in 0s\n", "package  817 / 817 B  in 0s\n",
                                               "copy  23 / 23 MB  in 0s\n"}));
}

TEST(ProgressLine, TheTimeThatIsLeftFallsWhileNothingIsReported) {
  Screen s;
  s.line.show({"rollout", 0, 4, "requests", ""}, 100);
  s.line.show({"rollout", 1, 4, "requests", ""}, 110);
  s.line.tick(120);
  s.line.tick(141);
  EXPECT_EQ(s.lines,
            (std::vector<std::string>{"rollout  1 / 4 requests  ETA 30s\n", "rollout  1 / 4 requests  ETA 20s\n",
                                      "rollout  1 / 4 requests  ETA 2m03s\n"}))
      << "it was expected to end by then";
}

TEST(ProgressLine, AStageWithoutANameEndsTheLast) {
  Screen s;
  s.line.show({"loading the models", 0, 0, "", "target"}, 100);
  s.line.tick(103);
  s.line.show({}, 104);
  for (double now = 104; now < 120; ++now) s.line.tick(now);
  EXPECT_EQ(s.lines, std::vector<std::string>{"loading the models  for 3s  target\n"});
}

TEST(ProgressLine, TheWorkOfAnEarlierRunSaysNothingOfTheTimeThatIsLeft) {
  Screen s;
  Progress progress{"regenerate", 80, 100, "rows", ""};
  s.line.show(progress, 100);
  s.line.show(progress, 102);
  progress.done = 90;
  s.line.show(progress, 110);
  EXPECT_EQ(s.lines,
            (std::vector<std::string>{"regenerate  80 / 100 rows  for 2s\n", "regenerate  90 / 100 rows  ETA 10s\n"}));
}

TEST(ProgressLine, OnlyFinishedWorkReadsSo) {
  Screen s;
  s.line.show({"ingest", 22.3, 22.9, "MB", ""}, 100);
  s.line.show({"ingest", 22.8, 22.9, "MB", ""}, 102);
  s.line.show({"ingest", 22.9, 22.9, "MB", ""}, 103);
  EXPECT_EQ(s.lines, (std::vector<std::string>{"ingest  22 / 23 MB  ETA 0s\n", "ingest  23 / 23 MB  in 3s\n"}));
}

TEST(ProgressLine, ALongStageFillsNoLog) {
  Screen s;
  for (int second = 0; second < 3600; ++second)
    s.line.show({"distill", 1.0 * second, 36000, "steps", ""}, 100 + second);
  EXPECT_LT(s.lines.size(), 420u);
  EXPECT_GT(s.lines.size(), 380u);
}

TEST(ProgressLine, ATerminalShowsOneLine) {
  Screen s(true);
  s.line.show({"a", 0, 0, "", ""}, 100);
  s.line.tick(101.5);
  s.line.show({"b", 1, 2, "rows", ""}, 102);
  s.line.show({"b", 2, 2, "rows", ""}, 103);
  EXPECT_EQ(s.lines, (std::vector<std::string>{"\r\033[Ka  for 0s", "\r\033[Ka  for 2s", "\n",
                                               "\r\033[Kb  1 / 2 rows  for 0s", "\r\033[Kb  2 / 2 rows  in 1s\n"}));
}

}  // namespace
}  // namespace specdec::cli
