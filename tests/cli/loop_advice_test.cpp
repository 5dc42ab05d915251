#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "cli/loop/advice.h"
#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

using namespace specdec::testing;

Json trained(int64_t kept) {
  return {
      {"verdict", "improved"},
      {"reason", "acceptance 0.1 -> 0.5"},
      {"options", {{"time_limit_seconds", 20.0}, {"epochs", 0.0}, {"max_steps", 0}}},
      {"training", {{"kept_step", kept}, {"selection", {{"measured", Json::array({{{"step", 0}}, {{"step", 90}}})}}}}}};
}
Json gate(const char* verdict, double alpha, double speedup) {
  return {{"verdict", verdict},
          {"reason", "as it is"},
          {"inputs", {{"floor", 0.6}}},
          {"acceptance", {{"alpha", alpha}, {"ci", {alpha - 0.02, alpha + 0.02}}}},
          {"speed", {{"measured", {{"speedup", speedup}, {"ci", {speedup - 0.1, speedup + 0.1}}}}}}};
}

struct LoopAdvice : ::testing::Test {
  LoopSettings settings;
  LoopAdvice() { settings.draft = "prune:2", settings.file = "/etc/LOOP.toml"; }
  Advice of(const std::string& stage, int code, const Json& result, int64_t kept = 90,
            const std::string& error = "") const {
    return advise(settings, {stage, code, 1, result, error}, trained(kept));
  }
};

TEST_F(LoopAdvice, AFailedGateNamesFigureFloorAndDistance) {
  const Advice a = of("validate", 3, gate("fail", 0.511, 1.2));
  EXPECT_NE(a.reason.find("acceptance 0.511 [0.491, 0.531], floor 0.60: 0.089 short of it"), std::string::npos)
      << a.reason;
  EXPECT_EQ(a.change.substr(0, 33), "[distill] time-limit = \"80s\": the") << "it was still rising";
  EXPECT_EQ(of("validate", 3, gate("fail", 0.511, 1.2), 40).change.substr(0, 24), "[loop] draft = \"prune:3\"")
      << "it was not";
}

TEST_F(LoopAdvice, ALossNamesTheSpeed) {
  const Advice a = of("validate", 6, gate("not_worth_it", 0.7, 0.9));
  EXPECT_NE(a.reason.find("speed-up 0.900 [0.800, 1.000]"), std::string::npos) << a.reason;
  EXPECT_EQ(a.change.substr(0, 24), "[loop] draft = \"prune:1\"");
  settings.draft = "prune:1";
  EXPECT_EQ(of("validate", 6, gate("not_worth_it", 0.7, 0.9)).change.substr(0, 9), "[distill]");
}

TEST_F(LoopAdvice, EveryEndHasWordsAndSomethingToChange) {
  for (const auto& [stage, code] : std::vector<std::pair<std::string, int>>{{"data", 7},
                                                                            {"regenerate", 75},
                                                                            {"distill", 3},
                                                                            {"distill", 4},
                                                                            {"distill", 8},
                                                                            {"validate", 4},
                                                                            {"validate", 5},
                                                                            {"package", 74},
                                                                            {"package", 143}})
    for (const Json& result : {Json(nullptr), Json::object(),
                               Json{{"verdict", 3}, {"acceptance", "x"}, {"inputs", Json::array()}, {"training", 1}}}) {
      const Advice a = of(stage, code, result, 1, "");
      EXPECT_FALSE(a.reason.empty() || a.change.empty()) << stage << code;
      headline(stage, result);
    }
  EXPECT_EQ(of("distill", 7, nullptr, 1, "x: no such file").reason, "x: no such file") << "a stage's own error";
}

TEST_F(LoopAdvice, ARunThatWasTooShortNamesItsLimit) {
  const auto change = [&](const std::string& next) {
    return of("distill", 4, Json{{"verdict", "inconclusive"}, {"reason", "3 steps teach nothing"}, {"next", next}})
        .change;
  };
  EXPECT_EQ(change("specdec distill --target t --time-limit 5h --out run-longer"), "[distill] time-limit = \"5h\"");
  EXPECT_EQ(change("specdec distill --target t --max-steps 1000"), "[distill] max-steps = 1000");
  EXPECT_EQ(change("specdec data ingest LOGS").substr(0, 20), "[data] holdout = 0.2");
}

// Settings that a late stage would reject are rejected before the first stage runs.
TEST(LoopSettings, WhatAStageWouldRefuseIsRefusedAtOnce) {
  const Scratch scratch;
  CLI::App app{"whole program", "specdec"};
  Global global;
  const EngineRunners runners;
  Cli cli{app, global, runners, {}, {}, {}};
  declare_commands(cli);
  const Command commands = command_tree(app);
  put(scratch / "log.jsonl", "{}\n");
  const auto read = [&](const std::string& more) {
    put(scratch / "LOOP.toml", "[loop]\ntarget = \"t\"\nlogs = [\"log.jsonl\"]\nwork = \"w\"\nstore = \"s\"\n" + more);
    return read_loop_settings(scratch / "LOOP.toml", &commands);
  };
  for (const auto& [more, named] : std::vector<std::pair<std::string, std::string>>{
           {"channel = \"../x\"\n", "[loop] channel"},
           {"channel = \"-x\"\n", "[loop] channel"},
           {"channel = 3\n", "[loop] channel"},
           {"draft = \"prune\"\n", "[loop] draft"},
           {"[package]\nnonsense = 1\n", "[package]: unknown key 'nonsense'"},
           {"[distill]\ntime-limits = \"1h\"\n", "did you mean 'time-limit'?"},
           {"[distill]\nout = \"x\"\n", "'out' is not set here"},
           {"[distill]\nforecast = true\n", "'forecast' is not set here"},
           {"[distill]\nloss = \"a\\u0000b\"\n", "control characters"},
           {"[nonsense]\n", "unknown table [nonsense]"}})
    expect_error(ErrorKind::kConfig, {"LOOP.toml", named}, [&] { read(more); });
  put(scratch / "LOOP.toml", "[loop]\ntarget = \"t\"\nlogs = \"log.jsonl\"\nwork = \"w\"\nstore = \"s\"\n");
  expect_error(ErrorKind::kConfig, {"[loop] logs: expected a list, found a string: write logs = [\"log.jsonl\"]"},
               [&] { read_loop_settings(scratch / "LOOP.toml", &commands); });
  const LoopSettings good = read(
      "channel = \"candidate\"\n[data]\nholdout = 0.2\n[regenerate]\ntarget = \"http://h/v1\"\n[distill]\nthreads = 2\n"
      "recompute = true\n[validate]\nfloor = 0.7\n[package]\nengines = \"vllm\"\n");
  EXPECT_EQ(good.stage_flags.at("distill"), (std::vector<std::string>{"--recompute", "--threads", "2"}));
}

TEST(LoopSettings, PathsLieBesideTheFile) {
  const Scratch scratch;
  fs::create_directories(scratch / "loop");
  fs::create_directories(scratch / "run/draft");
  fs::create_directories(scratch / "loop/org/name");
  put(scratch / "loop/log.jsonl", "{}\n");
  const auto draft = [&](const std::string& text) {
    put(scratch / "loop/LOOP.toml",
        "[loop]\ntarget = \"t\"\nlogs = [\"log.jsonl\"]\nwork = \"w\"\nstore = \"s\"\ndraft = \"" + text + "\"\n");
    return read_loop_settings(scratch / "loop/LOOP.toml").draft;
  };
  EXPECT_EQ(draft("model:../run/draft"), "model:" + (scratch / "run/draft").string());
  EXPECT_EQ(draft("model:org/name"), "model:" + (scratch / "loop/org/name").string());
  EXPECT_EQ(draft("model:org/other"), "model:org/other") << "a hub's";
  EXPECT_EQ(draft("model:./gone"), "model:" + (scratch / "loop/gone").string()) << "a path, whether or not it is there";
  EXPECT_EQ(draft("config:small.json"), "config:" + (scratch / "loop/small.json").string());
  EXPECT_EQ(draft("model:/else/where"), "model:/else/where");
  EXPECT_EQ(draft("prune:2"), "prune:2");
}

}  // namespace
}  // namespace specdec::cli
