#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/loop/checks.h"
#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

using namespace specdec::testing;

LoopSettings settings_in(const fs::path& directory) {
  LoopSettings s;
  s.file = directory / "LOOP.toml";
  s.work = directory / "loop";
  s.store = directory / "store";
  put(directory / "target/config.json", R"({"num_hidden_layers": 4})");
  return s;
}

// Each of these settings would otherwise be rejected only by its stage, after earlier stages have run.
TEST(LoopChecks, WhatAStageRefusesIsRefusedBeforeAnyRuns) {
  const Scratch scratch;
  const LoopSettings s = settings_in(scratch / "");
  const std::vector<std::string> distill = {"--json", "distill", "--target", "t",     "--data",
                                            "d",      "--draft", "prune:1",  "--out", "o"},
                                 gate = {"--json", "validate", "--target", "t",     "--draft",
                                         "d",      "--data",   "d",        "--out", "o"},
                                 package = {"--json",   "package", "--target", "t", "--draft",   "d",
                                            "--report", "r",       "--store",  "s", "--channel", "c"},
                                 ingest = {"--json", "data", "ingest", "a.jsonl", "--target", "t", "--out", "o"},
                                 regenerate = {"--json", "data", "regenerate", "d", "--target", "t", "--out", "o"};
  const auto with = [](std::vector<std::string> line, const std::vector<std::string>& flags) {
    line.insert(line.end(), flags.begin(), flags.end());
    return line;
  };
  for (const auto& [stage, line] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{{"distill", distill},
                                                                     {"validate", gate},
                                                                     {"package", package},
                                                                     {"data", ingest},
                                                                     {"regenerate", regenerate}})
    EXPECT_NO_THROW(check_stage(s, stage, line)) << stage;
  EXPECT_NO_THROW(check_stage(s, "validate", with(gate, {"--floor", "0.3", "--force"})));
  struct Wrong {
    std::string stage;
    std::vector<std::string> line;
    std::string says;
  };
  for (const Wrong& wrong : std::vector<Wrong>{
           {"validate", with(gate, {"--floor", "0,6"}), "--floor: expected a number, found '0,6'"},
           {"validate", with(gate, {"--floor", "0.3"}), "use --force"},
           {"validate", with(gate, {"--parts", "speeed"}), "--parts: expected"},
           {"validate", with(gate, {"--segment-floor", "math"}), "--segment-floor: expected NAME=FLOOR"},
           {"distill", with(distill, {"--time-limit", "half an hour"}), "--time-limit"},
           {"distill", with(distill, {"--loss", "nonsense"}), "--loss"},
           {"distill", with(distill, {"--help"}), "--help"},
           {"package", with(package, {"--engines", "vlm"}), "--engines: 'vlm': expected some of specdec, vllm"},
           {"package", with(package, {"--quantise", "fp9"}), "fp9"},
           {"data", with(ingest, {"--holdout", "2"}), "--holdout"},
           {"regenerate", with(regenerate, {"--concurrency", "0"}), "--concurrency"}})
    expect_error(ErrorKind::kConfig, {"LOOP.toml: [" + wrong.stage + "]: ", wrong.says},
                 [&] { check_stage(s, wrong.stage, wrong.line); });
}

TEST(LoopChecks, ThePlacesAndTheDraftAreLookedAt) {
  const Scratch scratch;
  const LoopSettings good = settings_in(scratch / "");
  EXPECT_NO_THROW(check_places(good, scratch / "target"));
  EXPECT_FALSE(fs::exists(good.work) || fs::exists(good.store)) << "a check writes nothing";
  const auto refused = [&](ErrorKind kind, const std::string& says, const auto& change) {
    LoopSettings s = good;
    change(s);
    expect_error(kind, {"LOOP.toml: [loop] ", says}, [&] { check_places(s, scratch / "target"); });
  };
  refused(ErrorKind::kIo, "store: --store /proc/x", [](LoopSettings& s) { s.store = "/proc/x"; });
  refused(ErrorKind::kIo, "work: ", [](LoopSettings& s) { s.work = "/proc/x"; });
  refused(ErrorKind::kConfig, "prune:200, and the target has 4 layers", [](LoopSettings& s) { s.draft = "prune:200"; });
  refused(ErrorKind::kModel, "nodir", [](LoopSettings& s) { s.draft = "model:nodir"; });
  refused(ErrorKind::kModel, "draft: ", [](LoopSettings& s) { s.draft = "config:/nowhere/config.json"; });
  refused(ErrorKind::kModel, "target/config.json", [&](LoopSettings& s) {
    s.draft = "config:" + (scratch / "target").string();  // names the directory instead of config.json in it
  });
  LoopSettings all = good;
  all.draft = "prune:4";
  EXPECT_NO_THROW(check_places(all, scratch / "target"));
}

}  // namespace
}  // namespace specdec::cli
