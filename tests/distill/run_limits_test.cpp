// Tests how limits and interruptions affect a run: its duration, verdict, dtype and directory.
#include <gtest/gtest.h>

#include <csignal>

#include "distill/train/evaluate.h"
#include "tests/base/manual_clock.h"
#include "tests/distill/project.h"

namespace specdec::distill {
namespace {

// If a run with too few steps shows no gain, the verdict is inconclusive, because the draft has hardly been trained.
TEST(RunLimits, FewStepsGiveNoVerdict) {
  Project f;
  f.options.draft = "model:" + f.options.target;
  f.options.max_steps = 5;
  const DistillResult r = f.run();
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_EQ(r.json["verdict"], "inconclusive");
  EXPECT_NE(r.json["reason"].get<std::string>().find("5 steps teach nothing"), std::string::npos) << r.json["reason"];
  EXPECT_NE(r.json["next"].get<std::string>().find("--lr 0.005 --batch-tokens 200 --max-steps 1000"), std::string::npos)
      << r.json["next"];
}

// A run with a time limit keeps the limit. It judges only as many held-out rows as there is time for, and reports how
// many these are.
TEST(RunLimits, ATimeLimitHoldsWithFewerHeldOutAnswers) {
  Project f(200);
  f.options.max_steps = 0;
  f.options.time_limit_seconds = 60;
  const ManualClock slow(0, 0.02);  // each reading of the clock advances it by 20 ms, in place of work
  const DistillResult r = distill::run(f.options, {}, slow);
  const double seconds = r.json["seconds"], training = r.json["training"]["seconds"];
  EXPECT_LE(seconds, 66) << "a step and a piece of rows may end late";
  EXPECT_GE(training, 20);
  EXPECT_GT(r.json["training"]["steps"].get<int64_t>(), 0);
  EXPECT_LE(r.json["training"]["chosen"]["training_seconds"].get<double>(), 60 - 2);
}

TEST(RunLimits, ADraftIsJudgedAndWrittenInTheCheckpointsDtype) {
  Project f;
  model::Decoder target = model::load_decoder(f.scratch / "target", at::kCPU, at::kBFloat16);
  model::save_decoder(target, f.scratch / "target");
  f.options.max_steps = 20;
  f.options.device.dtype = "fp32";
  const DistillResult r = f.run();
  EXPECT_EQ(r.json["cost"]["dtype"], "fp32");
  EXPECT_EQ(r.json["options"]["dtype"], "fp32");
  EXPECT_EQ(model::load_decoder_config(f.scratch / "run/draft").dtype, at::kBFloat16);
  const model::Decoder wide = model::load_decoder(f.scratch / "target", at::kCPU, at::kFloat),
                       draft = model::load_decoder(f.scratch / "run/draft", at::kCPU, at::kFloat);
  EXPECT_NEAR(evaluate(draft, &wide, f.judged_rows(), {.temperature = 1, .batch_tokens = 200}).acceptance,
              r.json["acceptance"]["after"]["value"].get<double>(), 1e-6)
      << "of the weights as they are written";
}

// A resumed run keeps the dtype chosen at its start, although another machine might choose another.
TEST(RunLimits, AResumedRunKeepsItsDtype) {
  Project f;
  model::save_decoder(model::load_decoder(f.scratch / "target", at::kCPU, at::kBFloat16), f.scratch / "target");
  f.options.max_steps = 12;
  f.options.checkpoint_every = 2;
  f.options.device.dtype = "bf16";
  in_child(nullptr, "", [&] {
    distill::run(
        f.options,
        [](const Progress& p) {
          if (p.stage == "distill" && p.done == 7) ::raise(SIGKILL);
        },
        f.clock);
  });
  f.options.resume = true;
  f.options.device.dtype = "fp32";
  expect_error(ErrorKind::kUsage, {"--resume", "--dtype (bf16 then, fp32 now)"}, [&] { f.run(); });
  f.options.device.dtype = "auto";
  EXPECT_EQ(f.run().json["options"]["dtype"], "bf16");
}

TEST(RunLimits, ARunWithoutACheckpointIsStartedAnew) {
  Project f;
  f.options.max_steps = 4;
  const int code = in_child(nullptr, "", [&] {
    distill::run(
        f.options,
        [](const Progress& p) {
          if (p.stage == "choosing layers") ::raise(SIGKILL);
        },
        f.clock);
  });
  EXPECT_EQ(code, 128 + SIGKILL);
  EXPECT_TRUE(fs::exists(f.scratch / "run/run.json")) << "it has begun to write";
  f.options.device.seed = 9;
  EXPECT_EQ(f.run().json["options"]["seed"], 9) << "without --resume, and with another option";
}

}  // namespace
}  // namespace specdec::distill
