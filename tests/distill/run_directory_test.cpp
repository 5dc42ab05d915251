#include "distill/run/run_directory.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/base/scratch.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

struct BegunRun : ::testing::Test {
  BegunRun() {
    fs::create_directories(scratch / "small");
    RunDirectory begun(scratch / "run");
    begun.enter(options, inputs);
    begun.keep();
    fs::create_directories(scratch / "run/checkpoints/step-1");
  }
  void resume() const { RunDirectory(scratch / "run").enter(options, inputs); }
  Scratch scratch;
  Json options = {{"draft", "model:" + (scratch / "small").string()},
                  {"epochs", 3},
                  {"time_limit_seconds", 60.0},
                  {"learning_rate", 0.01},
                  {"teacher", "labels:" + (scratch / "small").string()}};
  Json inputs = {{"target", {{"path", "models/target"}, {"id", "1111"}, {"tokenizer", "2222"}}},
                 {"data", {{"path", "traffic"}, {"digest", "3333"}}}};
};

TEST_F(BegunRun, TheSameFilesUnderAnotherNameAreTheSame) {
  fs::create_symlink(scratch / "small", scratch / "link");
  options["draft"] = "model:" + (scratch / "link").string();
  options["teacher"] = "labels:" + fs::relative(scratch / "small").string() + "/";
  inputs["target"]["path"] = "/srv/models/target";
  inputs["data"]["path"] = "../traffic";
  EXPECT_NO_THROW(resume());
}

TEST_F(BegunRun, WhatDiffersIsNamedByItsFlagWithBothValues) {
  options["epochs"] = 5;
  options["time_limit_seconds"] = 3600.0;
  options["learning_rate"] = 0.02;
  options["served_temperatures"] = true;
  options["draft"] = "prune:2";
  inputs["data"]["digest"] = "4444";
  inputs["target"]["id"] = "5555";
  expect_error(
      ErrorKind::kUsage,
      {"these differ: ", "--epochs (3 then, 5 now)", "--time-limit (1m then, 1h now)", "--lr (0.01 then, 0.02 now)",
       "--served-temperatures (not given then, true now)", "small then, prune:2 now)",
       "--data (digest 3333 then, 4444 now)", "--target (digest 1111 then, 5555 now)"},
      [&] { resume(); });
}

TEST_F(BegunRun, AnotherModelAsDraftDiffers) {
  options["draft"] = "model:" + (scratch / "other").string();
  expect_error(ErrorKind::kUsage, {"--draft (model:", "/small then, model:", "/other now)"}, [&] { resume(); });
}

}  // namespace
}  // namespace specdec::distill
