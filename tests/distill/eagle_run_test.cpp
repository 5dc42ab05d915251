// Tests complete runs of `distill --draft eagle3`.
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/schema/binding.h"
#include "distill/gradient/eagle_gradient.h"
#include "distill/run/run.h"
#include "distill/train/checkpoint.h"
#include "distill/train/contexts.h"
#include "distill/train/evaluate.h"
#include "tests/distill/project.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

struct EagleProject : Project {
  explicit EagleProject(int64_t layers = 8) : Project(40, 150, toy_decoder(layers, 1, 6)) {
    options.draft = "eagle3";
    options.ttt_steps = 3;
    options.max_steps = 60;
  }
  EagleDraft load(const std::string& directory) const {
    const auto target =
        std::make_shared<const model::Decoder>(model::load_decoder(scratch / "target", at::kCPU, at::kFloat));
    return {model::load_eagle_head(scratch / directory, *target, at::kCPU, at::kFloat), target};
  }
};

TEST(EagleRun, TrainsAHeadAndPublishesIt) {
  EagleProject f;
  f.options.draft_vocab = 18;
  const DistillResult r = f.run();
  EXPECT_EQ(r.exit_code, 0) << r.json["reason"];
  EXPECT_EQ(r.json["verdict"], "improved");
  EXPECT_EQ(r.json["draft_vocab"]["tokens"], 18);
  EXPECT_EQ(r.json["options"]["ttt_steps"], 3);
  EXPECT_EQ(check_binding(f.scratch / "target", f.scratch / "run/draft").state, BindingState::kBound);
  EXPECT_EQ(read_binding(f.scratch / "run/draft")->kind, "eagle3");
  EXPECT_EQ(r.json["draft"]["id"], fingerprint_model(f.scratch / "run/draft").id);
  EXPECT_EQ(get(f.scratch / "run/draft/tokenizer.json"), get(f.scratch / "target/tokenizer.json"));
  // The reported acceptance must be that of the published weights at the first draft position.
  EagleDraft draft = f.load("run/draft");
  EXPECT_EQ(draft.head.config.layer.draft_vocab.size(), 18u);
  HeldOut h = split_held_out(toy_rows(40, 6), 64, 1000);
  put_answers(answers_from_json(Json::parse(get(f.scratch / "run/contexts.json")), 24, "file"), {48, 2}, "file", h);
  EXPECT_NEAR(evaluate(TrainedDraft(draft), draft.target.get(), h.verdict, {.batch_tokens = 200}).acceptance,
              r.json["acceptance"]["after"]["value"].get<double>(), 1e-6);
  // A new run continues training from the published head.
  f.options.draft = "model:" + (f.scratch / "run/draft").string();
  f.options.draft_vocab = 0;
  f.options.max_steps = 2;
  f.options.out = (f.scratch / "again").string();
  const DistillResult again = f.run();
  EXPECT_NEAR(again.json["acceptance"]["before"]["value"].get<double>(),
              r.json["acceptance"]["after"]["value"].get<double>(), 1e-6);
  EXPECT_EQ(f.load("again/draft").head.config.layer.draft_vocab, draft.head.config.layer.draft_vocab);
  f.options.draft_vocab = 5;
  f.options.out = (f.scratch / "third").string();
  expect_error(ErrorKind::kUsage, {"--draft-vocab", "fixed"}, [&] { f.run(); });
}

TEST(EagleRun, ResumesAfterAKillToTheSameBits) {
  EagleProject f;
  f.options.checkpoint_every = 10;
  const DistillResult straight = f.run();
  f.options.out = (f.scratch / "again").string();
  const int code = in_child(nullptr, "", [&] {
    distill::run(
        f.options,
        [](const Progress& p) {
          if (p.stage == "distill" && p.done == 34) ::kill(::getpid(), SIGKILL);
        },
        f.clock);
  });
  EXPECT_EQ(code, 128 + SIGKILL);
  f.options.resume = true;
  const DistillResult resumed = f.run();
  EXPECT_EQ(sha256_file(f.scratch / "run/draft/model.safetensors"),
            sha256_file(f.scratch / "again/draft/model.safetensors"));
  EXPECT_EQ(straight.json["acceptance"], resumed.json["acceptance"]);
}

TEST(EagleRun, TargetsThatCannotBeTappedAreRefused) {
  EagleProject shallow(3);
  expect_error(ErrorKind::kUsage, {"--draft eagle3", "3 layers"}, [&] { shallow.run(); });
  EagleProject f;
  fs::remove(f.scratch / "target/model.safetensors");
  f.options.loss = "ce";
  expect_error(ErrorKind::kUsage, {"--draft eagle3", "no weights"}, [&] { f.run(); });
}

// With the loss "ce" a head still needs the target, because it reads the target's hidden states.
TEST(EagleRun, CrossEntropyAlone) {
  EagleProject f;
  f.options.loss = "ce";
  f.options.max_steps = 10;
  const DistillResult r = f.run();
  EXPECT_TRUE(r.json.contains("acceptance")) << r.json;
  EXPECT_GT(r.json["training"]["last_loss"].get<double>(), 0);
}

}  // namespace
}  // namespace specdec::distill
