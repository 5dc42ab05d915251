// Tests what a loop decides from the states of its earlier runs.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "cli/loop/loop.h"
#include "cli/loop/runs.h"
#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

constexpr int64_t kHour = 3600, kNow = 1000 * kHour;

struct LoopRuns : ::testing::Test {
  testing::Scratch dir;
  fs::path work = dir / "work";
  LoopInputs inputs{"target", std::string(64, 'a'), "", std::string(64, 's'), {{"day-1", "1"}}};

  LoopInputs with_log(const std::string& digest) const {
    LoopInputs other = inputs;
    other.logs[0].sha256 = digest;
    return other;
  }
  fs::path run_of(const LoopInputs& i) const { return work / "runs" / i.key(); }
  RunState begin(const LoopInputs& i, int64_t now) {
    make_directories(run_of(i));
    RunState state(run_of(i), i, now);
    return state;
  }
  // Records a run that finished its data stage and ended with `code` (0: it was killed), one hour after it began.
  void ended(const LoopInputs& i, int code, int64_t now) {
    RunState state = begin(i, now - kHour);
    state.record("data", run_of(i), 1, nullptr);
    if (code != 0) state.stopped({"validate", code, 1}, now);
  }
  std::optional<std::string> next(const LoopInputs& i) const { return run_to_continue(earlier_runs(work), i); }
  int refused(const LoopInputs& i, int64_t now = kNow) const {
    const auto r = refusal(earlier_runs(work), i, 24 * kHour, now);
    return r ? r->exit_code : 0;
  }
};

TEST(StageEnd, TheJsonOfAnErrorIsNoResult) {
  const Json error = {{"schema", "specdec.error/1"}, {"verdict", "error"}, {"message", "logs: is missing"}};
  const StageEnd failed = stage_end("data", 7, 1, error, "an older line");
  EXPECT_EQ(failed.error, "logs: is missing");
  EXPECT_TRUE(failed.result.is_null()) << "or the advice would read figures in it";
  const StageEnd judged = stage_end("validate", 3, 1, {{"schema", "specdec.validate/1"}, {"verdict", "fail"}}, "");
  EXPECT_EQ(judged.result.at("verdict"), "fail");
  EXPECT_EQ(judged.error, "");
  EXPECT_EQ(stage_end("data", 137, 1, nullptr, "killed").error, "killed");
}

TEST_F(LoopRuns, TheKeyIsWhatGoesIn) {
  EXPECT_EQ(inputs.key(), with_log("1").key());
  EXPECT_NE(inputs.key(), with_log("2").key());
  LoopInputs other = inputs;
  other.target = "the same model elsewhere";
  EXPECT_EQ(inputs.key(), other.key());
  other.settings_sha256 = std::string(64, 't');
  EXPECT_EQ(inputs.key(), other.key()) << "settings key the stages, so that a late one does not repeat all";
}

TEST_F(LoopRuns, AnInterruptedRunGoesOnAlthoughLogsHaveGrown) {
  EXPECT_EQ(next(inputs), std::nullopt);
  begin(inputs, kNow).stopped({"data", 75, 1}, kNow);
  EXPECT_EQ(next(inputs), inputs.key());
  EXPECT_EQ(next(with_log("2")), std::nullopt) << "nothing of it is worth keeping before its data is there";
  ended(inputs, 0, kNow);
  EXPECT_EQ(next(with_log("2")), inputs.key());
  LoopInputs other = with_log("2");
  other.target_id = std::string(64, 'b');
  EXPECT_EQ(next(other), std::nullopt) << "another target is another matter";
}

TEST_F(LoopRuns, WhatStoppedARunDecidesWhetherItGoesOn) {
  for (const auto& [code, goes_on] : std::vector<std::pair<int, bool>>{{75, true},
                                                                       {74, true},
                                                                       {8, true},
                                                                       {137, true},
                                                                       {3, false},
                                                                       {4, false},
                                                                       {6, false},
                                                                       {7, false},
                                                                       {2, false},
                                                                       {1, false}}) {
    ended(inputs, code, kNow);
    EXPECT_EQ(next(with_log("2")).has_value(), goes_on) << code;
  }
  RunState(run_of(inputs), inputs, kNow).promoted(kNow);
  EXPECT_EQ(next(with_log("2")), std::nullopt);
}

TEST_F(LoopRuns, AVerdictCoolsDown) {
  ended(inputs, 3, kNow);
  EXPECT_EQ(refused(inputs), 3) << "the same data";
  EXPECT_EQ(refused(inputs, kNow + 100 * kHour), 3) << "for ever";
  EXPECT_EQ(refused(with_log("2"), kNow + 23 * kHour), 75);
  EXPECT_EQ(refused(with_log("2"), kNow + 25 * kHour), 0);
  LoopInputs other = with_log("2");
  other.settings_sha256 = std::string(64, 't');
  EXPECT_EQ(refused(other), 0) << "other settings have no verdict";
  other = inputs;
  other.settings_sha256 = std::string(64, 't');
  EXPECT_EQ(refused(other), 0) << "nor on the same data";
  EXPECT_EQ(next(other), inputs.key()) << "whose run goes on";
  other = with_log("2");
  other.target_id = std::string(64, 'b');
  EXPECT_EQ(refused(other), 0) << "a changed target does not wait";
  ended(with_log("3"), 4, kNow);
  EXPECT_EQ(refused(with_log("3"), kNow + 23 * kHour), 4);
  EXPECT_EQ(refused(with_log("3"), kNow + 25 * kHour), 0) << "inconclusive may be the machine's fault";
  ended(with_log("4"), 7, kNow);
  EXPECT_EQ(refused(with_log("4"), kNow + 25 * kHour), 0) << "an error is no verdict";
}

// A run that stopped before training, because too few conversations were held out, starts no cooldown.
TEST_F(LoopRuns, WhatWasNotTrainedDoesNotCoolDown) {
  RunState state = begin(inputs, kNow);
  state.record("data", run_of(inputs), 1, nullptr);
  state.stopped({.stage = "distill", .exit_code = 4, .ran = false}, kNow);
  EXPECT_EQ(refused(inputs, kNow + kHour), 4) << "the same logs end in the same way";
  EXPECT_EQ(refused(with_log("2"), kNow + kHour), 0) << "more logs are what it asked for";
}

TEST_F(LoopRuns, APromotionEndsACooldown) {
  ended(inputs, 3, kNow);
  begin(with_log("2"), kNow + kHour).promoted(kNow + 2 * kHour);
  EXPECT_EQ(refused(with_log("3"), kNow + 3 * kHour), 0);
}

TEST_F(LoopRuns, OldRunsGo) {
  for (int i = 0; i < 5; ++i) ended(with_log(std::to_string(i)), 0, kNow + i * kHour);
  make_directories(work / "runs" / "never-began");
  testing::put(work / "runs" / "foreign" / "state.json", "{}");
  remove_old_runs(work, with_log("0").key(), 3);
  std::vector<std::string> left;
  for (const EarlierRun& run : earlier_runs(work)) left.push_back(run.key);
  EXPECT_EQ(left, (std::vector<std::string>{with_log("4").key(), with_log("3").key(), with_log("0").key()}))
      << "the newest, and the current one";
  EXPECT_FALSE(fs::exists(work / "runs" / "never-began"));
  EXPECT_TRUE(fs::exists(work / "runs" / "foreign")) << "what is not ours stays";
}

TEST_F(LoopRuns, OfTwoThatBeganInTheSameSecondTheOneWrittenFirstIsTheOlder) {
  for (const auto& [first, second] : {std::pair("1", "2"), std::pair("2", "1")}) {
    for (const char* log : {first, second}) ended(with_log(log), 0, kNow);
    fs::last_write_time(run_of(with_log(first)) / "state.json",
                        fs::file_time_type::clock::now() - std::chrono::milliseconds(100));
    EXPECT_EQ(earlier_runs(work).back().key, with_log(first).key());
  }
}

TEST_F(LoopRuns, AChangedSettingRepeatsItsStageAndThoseAfterIt) {
  const fs::path out = dir / "out";
  testing::put(out, "");
  const auto run_stage = [&](RunState& state, const std::string& stage, const std::string& key) {
    state.begin(stage, key);
    state.record(stage, out, 1, nullptr);
  };
  RunState first = begin(inputs, kNow);
  for (const auto& [stage, key] : {std::pair("data", "d"), {"distill", "t"}, {"validate", "v"}})
    run_stage(first, stage, key);
  first.stopped({"package", 3, 1}, kNow);
  LoopInputs other = inputs;
  other.settings_sha256 = std::string(64, 't');
  RunState state(run_of(inputs), other, kNow);
  EXPECT_EQ(state.state().head.verdict, "running") << "the verdict was one on other settings";
  EXPECT_EQ(state.state().inputs.settings_sha256, other.settings_sha256);
  EXPECT_FALSE(state.state().stopped);
  EXPECT_TRUE(state.done("data", "d", out));
  EXPECT_TRUE(state.done("distill", "t", out)) << "a changed floor trains nothing again";
  EXPECT_FALSE(state.done("validate", "v2", out));
  EXPECT_TRUE(state.began_otherwise("validate", "v2"));
  EXPECT_FALSE(state.began_otherwise("distill", "t"));
  state.begin("distill", "t2");
  EXPECT_TRUE(state.done("data", "d", out));
  EXPECT_FALSE(state.done("validate", "v", out)) << "it judged another draft";
  EXPECT_FALSE(state.began_otherwise("distill", "t2")) << "so that it can be resumed";
}

TEST_F(LoopRuns, AStateOfAnOlderVersionGoesOn) {
  ended(inputs, 75, kNow);
  const RunState state(run_of(inputs), inputs, kNow);
  ASSERT_TRUE(state.state().begun.empty());
  EXPECT_TRUE(state.done("data", "any", run_of(inputs)));
  EXPECT_FALSE(state.began_otherwise("distill", "any"));
}

TEST_F(LoopRuns, AnothersStateIsAnError) {
  begin(inputs, kNow).promoted(kNow);
  Json state = read_json(run_of(inputs) / "state.json");
  state["key"] = "another";
  testing::put(run_of(inputs) / "state.json", state.dump());
  testing::expect_error(ErrorKind::kData, {"state.json", "remove its directory"},
                        [&] { RunState(run_of(inputs), inputs, kNow); });
}

TEST_F(LoopRuns, UnderALauncherWhatRankZeroSaysCounts) {
  const Json done = {{"schema", "specdec.distill/1"}, {"verdict", "no_significant_gain"}},
             stopped = {{"schema", "specdec.error/1"}, {"verdict", "error"}, {"exit_code", 75}};
  EXPECT_EQ(launched_exit_code(0, {{"verdict", "improved"}}, true), 0);
  EXPECT_EQ(launched_exit_code(1, {{"verdict", "improved"}}, true), 0);
  EXPECT_EQ(launched_exit_code(1, done, true), 3) << "torchrun's own code is 1";
  EXPECT_EQ(launched_exit_code(1, stopped, false), 75);
  EXPECT_EQ(launched_exit_code(137, nullptr, true), 75) << "rank 0 was killed";
  EXPECT_EQ(launched_exit_code(127, nullptr, false), 127) << "no such launcher";
  EXPECT_EQ(launched_exit_code(0, nullptr, true), 0);
  for (const Json& odd : {Json("text"), Json::array(), Json{{"verdict", 3}}, Json{{"exit_code", "x"}}})
    EXPECT_EQ(launched_exit_code(2, odd, false), 2);
}

TEST_F(LoopRuns, TheLauncherIsAListOfWords) {
  testing::put(dir / "log.jsonl", "{}\n");
  const auto launcher = [&](const std::string& value) {
    testing::put(
        dir / "LOOP.toml",
        "[loop]\ntarget = \"t\"\nlogs = [\"log.jsonl\"]\nwork = \"w\"\nstore = \"s\"\nlauncher = " + value + "\n");
    return read_loop_settings(dir / "LOOP.toml").launcher;
  };
  EXPECT_EQ(launcher("[\"torchrun\", \"--nproc-per-node\", 8]"),
            (std::vector<std::string>{"torchrun", "--nproc-per-node", "8"}));
  for (const char* wrong : {"\"torchrun\"", "[]", "[true]", "3"})
    testing::expect_error(ErrorKind::kConfig, {"[loop] launcher"}, [&] { launcher(wrong); });
}

}  // namespace
}  // namespace specdec::cli
