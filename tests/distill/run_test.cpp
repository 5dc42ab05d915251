#include "distill/run/run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/log.h"
#include "base/schema/binding.h"
#include "distill/run/output.h"
#include "distill/run/run_directory.h"
#include "distill/train/checkpoint.h"
#include "distill/train/contexts.h"
#include "distill/train/evaluate.h"
#include "tests/distill/project.h"

namespace specdec::distill {
namespace {

using namespace specdec::testing;

TEST(Run, ImprovesAPrunedDraftAndPublishesIt) {
  Project f;
  const DistillResult r = f.run();
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_EQ(r.json["schema"], "specdec.distill/1");
  EXPECT_EQ(r.json["verdict"], "improved");
  const Json& a = r.json["acceptance"];
  EXPECT_GT(a["after"]["value"].get<double>(), a["before"]["value"].get<double>());
  EXPECT_LE(a["after"]["ci"][0].get<double>(), a["after"]["value"].get<double>());
  EXPECT_GT(a["difference"]["ci"][0].get<double>(), 0);
  EXPECT_EQ(a["conversations"], 20);
  int64_t tokens = 0;
  for (const Json& part : a["by_position"]) {
    tokens += part["tokens"].get<int64_t>();
    EXPECT_GT(part["after"]["value"].get<double>(), part["before"]["value"].get<double>()) << part;
  }
  EXPECT_EQ(tokens, a["tokens"].get<int64_t>());
  EXPECT_TRUE(a["by_domain"].empty()) << "the rows have none";
  const Json& cost = r.json["cost"];
  EXPECT_EQ(cost["device"], "cpu");
  EXPECT_EQ(cost["training_tokens"], r.json["training"]["tokens"]);
  EXPECT_GT(cost["teacher_share"].get<double>(), 0);
  EXPECT_LT(cost["teacher_share"].get<double>(), 1);
  EXPECT_EQ(r.json["training"]["selection"]["conversations"], 20);
  const Json& measured = r.json["training"]["selection"]["measured"];
  EXPECT_GE(measured.size(), 2u);
  for (const Json& m : measured) {
    EXPECT_LT(m["ci"][0], m["score"]) << m;
    EXPECT_GT(m["ci"][1], m["score"]) << m;
  }
  EXPECT_EQ(r.json["training"]["steps"], 120);
  EXPECT_EQ(r.json["training"]["layers"]["kept"].size(), 2u);
  EXPECT_EQ(Json::parse(get(f.scratch / "run/result.json")), r.json);
  // The draft is bound to its target and has byte-for-byte copies of the target's tokenizer files.
  EXPECT_EQ(check_binding(f.scratch / "target", f.scratch / "run/draft").state, BindingState::kBound);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    EXPECT_EQ(get(f.scratch / "run/draft" / name), get(f.scratch / "target" / name));
  const auto binding = read_binding(f.scratch / "run/draft");
  EXPECT_EQ(binding->kind, "prune:2");
  EXPECT_EQ(binding->loss, "lk_hybrid");
  EXPECT_EQ(r.json["draft"]["id"], fingerprint_model(f.scratch / "run/draft").id);
  EXPECT_EQ(model::load_decoder_config(f.scratch / "run/draft").num_layers, 2);
  // The reported acceptance is that of the published weights on the held-out rows that judge the draft (verdict half).
  const model::Decoder target = model::load_decoder(f.scratch / "target", at::kCPU, at::kFloat);
  const model::Decoder draft = model::load_decoder(f.scratch / "run/draft", at::kCPU, at::kFloat);
  EXPECT_NEAR(evaluate(draft, &target, f.judged_rows(), {.temperature = 1, .batch_tokens = 200}).acceptance,
              a["after"]["value"].get<double>(), 1e-6);
  // A change of the target makes the draft stale.
  put(f.scratch / "target/generation_config.json", R"({"eos_token_id": 3})");
  EXPECT_EQ(check_binding(f.scratch / "target", f.scratch / "run/draft").state, BindingState::kStale);
}

// A draft is measured on the target's own answers, unless the target wrote the answers in the data or the user gives
// --contexts data.
TEST(Run, MeasuresOnTheTargetsOwnAnswers) {
  Project f;
  f.options.max_steps = 20;
  DistillResult r = f.run();
  EXPECT_EQ(r.json["data"]["contexts"], "target");
  const double own = r.json["acceptance"]["after"]["value"];
  f.options.contexts = "data";
  f.options.out = (f.scratch / "as-it-is").string();
  r = f.run();
  EXPECT_EQ(r.json["data"]["contexts"], "data");
  EXPECT_FALSE(fs::exists(f.scratch / "as-it-is/contexts.json"));
  const double foreign = r.json["acceptance"]["after"]["value"];
  EXPECT_GT(std::abs(own - foreign), 0.01) << own << ": the two texts differ";
  Json index = Json::parse(get(f.scratch / "data/index.json"));
  index["written_by"] = "target";
  index["target_id"] = fingerprint_model(f.options.target).id;
  put(f.scratch / "data/index.json", index.dump());
  f.options.contexts = "target";
  f.options.out = (f.scratch / "own-data").string();
  r = f.run();
  EXPECT_EQ(r.json["data"]["contexts"], "data") << "the target has written them already";
  f.options.contexts = "both";
  expect_error(ErrorKind::kUsage, {"--contexts", "target or data"}, [&] { f.run(); });
}

// Fine-tuned models often name the end-of-turn token only in their tokenizer. Servers end answers at this token, so the
// answers on which a draft is measured end there, too.
TEST(Run, TheTokenizersEndEndsTheAnswersThatMeasure) {
  Project f;
  f.options.max_steps = 1;
  const auto answers = [&](const char* out) {
    f.options.out = (f.scratch / out).string();
    f.run();
    HeldOutAnswers all = answers_from_json(Json::parse(get(f.scratch / out / "contexts.json")), 24, "file");
    all.selection.insert(all.selection.end(), all.verdict.begin(), all.verdict.end());
    return all.selection;
  };
  const auto goes_on_after = [](const std::vector<std::vector<int32_t>>& all, int32_t end) {
    return std::count_if(all.begin(), all.end(), [&](const std::vector<int32_t>& answer) {
      const auto at = std::find(answer.begin(), answer.end(), end);
      return at != answer.end() && at + 1 != answer.end();
    });
  };
  const std::vector<std::vector<int32_t>> without = answers("without");
  const int32_t end = without.at(0).at(0);
  ASSERT_GT(goes_on_after(without, end), 0);
  f.options.tokenizer_end = end;
  EXPECT_EQ(goes_on_after(answers("with"), end), 0);
}

TEST(Run, AReducedVocabularyIsLearntPublishedAndKept) {
  Project f;
  f.options.draft_vocab = 9;
  const DistillResult r = f.run();
  EXPECT_EQ(r.json["verdict"], "no_significant_gain") << "against the whole draft: nine tokens are too few";
  const Json& v = r.json["draft_vocab"];
  EXPECT_EQ(v["tokens"], 9);
  EXPECT_GT(v["train"]["value"].get<double>(), 0.3);
  EXPECT_LT(v["train"]["value"].get<double>(), 1);
  EXPECT_EQ(v["holdout"]["domains"].size(), 1u);
  const model::Decoder target = model::load_decoder(f.scratch / "target", at::kCPU, at::kFloat);
  model::Decoder draft = model::load_decoder(f.scratch / "run/draft", at::kCPU, at::kFloat);
  ASSERT_EQ(draft.config.draft_vocab.size(), 9u);
  EXPECT_EQ(draft.weights.lm_head.size(0), draft.config.vocab_size) << "other engines load it whole";
  for (const int32_t id : target.config.eos_ids)
    EXPECT_TRUE(std::binary_search(draft.config.draft_vocab.begin(), draft.config.draft_vocab.end(), id));
  EXPECT_NEAR(evaluate(draft, &target, f.judged_rows(), {.temperature = 1, .batch_tokens = 200}).acceptance,
              r.json["acceptance"]["after"]["value"].get<double>(), 1e-6);
  // A run that continues from this draft keeps the draft's vocabulary.
  f.options.draft = "model:" + (f.scratch / "run/draft").string();
  f.options.draft_vocab = 0;
  f.options.max_steps = 2;
  f.options.out = (f.scratch / "again").string();
  f.run();
  EXPECT_EQ(model::load_decoder_config(f.scratch / "again/draft").draft_vocab, draft.config.draft_vocab);
  f.options.draft_vocab = 1 << 20;
  f.options.out = (f.scratch / "third").string();
  expect_error(ErrorKind::kUsage, {"--draft-vocab", "the target has"}, [&] { f.run(); });
}

TEST(Run, ADraftThatCannotGainIsToldSo) {
  Project f;
  f.options.draft = "model:" + f.options.target;
  f.options.max_steps = kTeachingSteps;
  const DistillResult r = f.run();
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_EQ(r.json["verdict"], "no_significant_gain");
  EXPECT_EQ(r.json["training"]["kept_step"], 0) << "the untouched draft is a candidate too";
  EXPECT_NEAR(r.json["acceptance"]["after"]["value"].get<double>(), 1, 1e-6);
}

TEST(Run, TooFewConversationsAreInconclusive) {
  Project g(13);
  g.options.max_steps = 3;
  const DistillResult few = g.run();
  EXPECT_EQ(few.exit_code, 4);
  EXPECT_EQ(few.json["verdict"], "inconclusive");
  EXPECT_NE(few.json["reason"].get<std::string>().find("7 held-out conversations"), std::string::npos);
  Project none;
  write_data(none.scratch / "empty", none.scratch / "target", {}, toy_rows(3, 3));
  none.options.data = (none.scratch / "empty").string();
  const DistillResult nothing = none.run();
  EXPECT_EQ(nothing.exit_code, 4);
  EXPECT_NE(nothing.json["reason"].get<std::string>().find("too little data"), std::string::npos);
}

TEST(Run, ResumesAfterAKillToTheSameBits) {
  Project f;
  f.options.checkpoint_every = 10;
  const DistillResult straight = f.run();
  f.options.out = (f.scratch / "again").string();
  const int code = in_child(nullptr, "", [&] {
    distill::run(
        f.options,
        [](const Progress& p) {
          if (p.stage == "distill" && p.done == 57) ::raise(SIGKILL);
        },
        f.clock);
  });
  EXPECT_EQ(code, 128 + SIGKILL);
  expect_error(ErrorKind::kUsage, {"has an earlier run", "--resume"}, [&] { f.run(); });
  f.options.resume = true;
  const DistillResult resumed = f.run();
  EXPECT_EQ(get(f.scratch / "again/draft/model.safetensors"), get(f.scratch / "run/draft/model.safetensors"));
  for (const char* key : {"verdict", "acceptance", "options", "inputs", "data"})
    EXPECT_EQ(resumed.json[key], straight.json[key]) << key;
  EXPECT_EQ(resumed.json["training"]["selection"], straight.json["training"]["selection"]);
  // Running the command again returns the same result, because the run has finished.
  EXPECT_EQ(f.run().json, resumed.json);
  f.options.lk_eta = 4;
  f.options.device.seed = 8;
  expect_error(ErrorKind::kUsage, {"--resume", "--lk-eta (3 then, 4 now)", "--seed (", " then, 8 now)"},
               [&] { f.run(); });
}

// A run with --on-policy trains the draft on its own continuations (roll-outs), at every draft position. When the run
// is resumed, the result is bit-identical, with the same roll-outs.
TEST(Run, LearnsWhereTheDraftGoesOnByItself) {
  Project f;
  f.options.on_policy = 3;
  f.options.anchors = 0.3;
  f.options.checkpoint_every = 10;
  const DistillResult straight = f.run();
  EXPECT_EQ(straight.json["verdict"], "improved");
  EXPECT_EQ(straight.json["options"]["on_policy"], 3);
  const Json& deeper = straight.json["training"]["deeper_acceptance"];
  ASSERT_EQ(deeper.size(), 2u);
  for (const Json& a : deeper) EXPECT_GT(a.get<double>(), 0.2);
  f.options.out = (f.scratch / "again").string();
  const int code = in_child(nullptr, "", [&] {
    distill::run(
        f.options,
        [](const Progress& p) {
          if (p.stage == "distill" && p.done == 57) ::raise(SIGKILL);
        },
        f.clock);
  });
  EXPECT_EQ(code, 128 + SIGKILL);
  f.options.resume = true;
  EXPECT_EQ(f.run().json["training"]["deeper_acceptance"], deeper);
  EXPECT_EQ(get(f.scratch / "again/draft/model.safetensors"), get(f.scratch / "run/draft/model.safetensors"));
  for (const auto& [draft, loss, teacher] : std::vector<std::array<std::string, 3>>{
           {"eagle3", "kl", "target"}, {"prune:2", "ce", "target"}, {"prune:2", "kl", "labels:x"}}) {
    DistillOptions o = f.options;
    o.draft = draft, o.loss = loss, o.teacher = teacher;
    expect_error(ErrorKind::kUsage, {"--on-policy"}, [&] { validate(o); });
  }
}

// Settings that the options leave open are chosen once. A resumed run keeps these settings; if the limit is in steps,
// its result is bit-identical.
TEST(Run, ChoosesSettingsOnceAndKeepsThemWhenItGoesOn) {
  Project f;
  f.options.batch_tokens = 0;
  f.options.learning_rate = 0;
  f.options.max_steps = 0;
  f.options.epochs = 12;
  f.options.checkpoint_every = 5;
  const DistillResult straight = f.run();
  EXPECT_EQ(straight.json["options"]["batch_tokens"], 256);
  EXPECT_NEAR(straight.json["options"]["learning_rate"].get<double>(), 0.012, 1e-12);
  EXPECT_EQ(straight.json["training"]["chosen"]["batch_tokens"], 256);
  EXPECT_EQ(Json::parse(get(f.scratch / "run/run.json"))["options"]["batch_tokens"], 0) << "as it was given";
  f.options.out = (f.scratch / "again").string();
  const auto kill_at = [&](double done) {
    return in_child(nullptr, "", [&] {
      distill::run(
          f.options,
          [&](const Progress& p) {
            if (p.stage == "distill" && p.done >= done) ::raise(SIGKILL);
          },
          f.clock);
    });
  };
  EXPECT_EQ(kill_at(27), 128 + SIGKILL);
  f.options.resume = true;
  EXPECT_EQ(f.run().json["options"], straight.json["options"]);
  EXPECT_EQ(get(f.scratch / "again/draft/model.safetensors"), get(f.scratch / "run/draft/model.safetensors"));
  // With a time limit, a resumed run keeps the settings that the interrupted run computed from the machine's speed.
  f.options.epochs = 0;
  f.options.resume = false;
  f.options.time_limit_seconds = 1.5;
  f.options.out = (f.scratch / "timed").string();
  EXPECT_EQ(kill_at(0.4), 128 + SIGKILL);
  const auto state = CheckpointStore(f.scratch / "timed/checkpoints").newest_good()->state;
  f.options.resume = true;
  EXPECT_EQ(f.run().json["training"]["chosen"], state["extra"]["chosen"]);
}

TEST(Run, EveryVerdictNamesTheNextCommand) {
  Project f;
  f.options.out = (f.scratch / "a run").string();
  EXPECT_EQ(f.run().json["next"], "specdec validate --target " + f.options.target + " --draft '" + f.options.out +
                                      "/draft' --data " + f.options.data + " --out '" + f.options.out +
                                      "/gate' --device cpu --threads 1");
  DistillOptions o = f.options;
  o.max_steps = 10;
  const RunEnd rising{.rising = true}, flat{};
  EXPECT_NE(next_step(Verdict::kNoSignificantGain, o, rising).command.find("--max-steps 40"), std::string::npos);
  EXPECT_NE(next_step(Verdict::kNoSignificantGain, o, rising).reason,
            next_step(Verdict::kNoSignificantGain, o, flat).reason);
  o.max_steps = 0;
  o.time_limit_seconds = 20;
  o.device.dtype = "bf16";
  EXPECT_NE(next_step(Verdict::kNoSignificantGain, o, rising).command.find("--time-limit 80s"), std::string::npos);
  EXPECT_NE(next_step(Verdict::kNoSignificantGain, o, rising).command.find("--dtype bf16"), std::string::npos)
      << "it keeps what was given";
  EXPECT_NE(next_step(Verdict::kInconclusive, o, flat).reason.find("15 held-out conversations"), std::string::npos);
  EXPECT_NE(next_step(Verdict::kInconclusive, o, {.longer = 15}).command.find("--time-limit 5m"), std::string::npos);
}

// A stop request at any stage before or after the training steps gives exit code 75; the same command with --resume
// then succeeds.
TEST(Run, PreparingEndsAtAStop) {
  for (const char* stage : {"loading the target", "reading the data", "choosing layers", "measuring the start",
                            "measuring and saving the start", "measuring and saving the end", "judging"}) {
    Project f;
    f.options.max_steps = 4;
    const int code = in_child(nullptr, "", [&] {
      distill::run(
          f.options,
          [&](const Progress& p) {
            if (p.stage == stage) request_stop();
          },
          f.clock);
    });
    EXPECT_EQ(code, 75) << stage;
    f.options.resume = true;
    EXPECT_EQ(f.run().json["training"]["steps"], 4) << stage;
  }
}

TEST(Run, LearnsFromTextAloneWithoutATarget) {
  Project f;
  fs::create_directories(f.scratch / "tokenizer");
  toy_tokenizer(f.scratch / "tokenizer");
  put(f.scratch / "tokenizer/config.json", model::to_json(toy_config(2)).dump());
  f.options.target = (f.scratch / "tokenizer").string();
  f.options.draft = "config:" + (f.scratch / "tokenizer/config.json").string();
  f.options.loss = "ce";
  // Makes text with something to learn: the tokens of every row count upwards.
  auto count = toy_rows(150, 5), held_out = toy_rows(40, 6);
  for (auto* rows : {&count, &held_out})
    for (TokenRow& r : *rows)
      for (size_t t = 1; t < r.tokens.size(); ++t) r.tokens[t] = (r.tokens[t - 1] + 1) % 24;
  write_data(f.scratch / "counting", f.scratch / "tokenizer", count, held_out);
  f.options.data = (f.scratch / "counting").string();
  const DistillResult r = f.run();
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_FALSE(r.json.contains("acceptance"));
  EXPECT_LT(r.json["cross_entropy"]["after"]["value"].get<double>(),
            r.json["cross_entropy"]["before"]["value"].get<double>() - 0.5);
  EXPECT_GT(r.json["cross_entropy"]["difference"]["ci"][0].get<double>(), 0);
  EXPECT_FALSE(fs::exists(f.scratch / "run/draft/specdec.json")) << "bound to nothing";
  // Trains the target's own weights further, as for an update of the target. The initial draft is the target itself, so
  // the verdict is by cross entropy instead of acceptance.
  f.options.target = (f.scratch / "run/draft").string();
  f.options.draft = "model:" + f.options.target;
  f.options.out = (f.scratch / "more").string();
  const DistillResult more = f.run();
  EXPECT_EQ(more.json["verdict"], "improved");
  EXPECT_FALSE(fs::exists(f.scratch / "more/draft/specdec.json"));
}

TEST(Run, ARunThatFailsAtItsStartLeavesNothing) {
  Project f;
  fs::create_directory(f.options.out);
  {
    const RunDirectory run(f.options.out);
    for (const char* name : {"mlflow.json", "report.md", "report.html", "metrics.jsonl"})
      put(fs::path(f.options.out) / name, "{}");
  }
  EXPECT_TRUE(fs::is_empty(f.options.out));
  fs::remove(f.options.out);
  f.options.draft = "model:" + f.options.target;
  fs::copy(f.options.target, f.scratch / "broken", fs::copy_options::recursive);
  fs::resize_file(f.scratch / "broken/model.safetensors", 1000);
  f.options.draft = "model:" + (f.scratch / "broken").string();
  EXPECT_THROW(f.run(), Error);
  EXPECT_FALSE(fs::exists(f.options.out));
  fs::create_directory(f.options.out);  // an empty directory that exists is kept
  EXPECT_THROW(f.run(), Error);
  EXPECT_TRUE(fs::is_empty(f.options.out));
  f.options.draft = "model:" + f.options.target;
  f.options.max_steps = 2;
  EXPECT_NO_THROW(f.run()) << "the corrected command needs no other directory";
}

// A run that was killed before its first checkpoint leaves files (mlflow.json comes from a script in examples/). A new
// run in the same directory removes them.
TEST(Run, ANewRunTakesOverNothingOfAKilledOne) {
  const Scratch scratch;
  const fs::path run = scratch / "run";
  fs::create_directories(run / "checkpoints");
  for (const char* name : {"run.json", "mlflow.json", "contexts.json", "metrics.jsonl", "notes.txt"})
    put(run / name, "{}");
  RunDirectory directory(run);
  directory.enter({{"seed", 1}}, Json::object());
  for (const char* name : {"mlflow.json", "contexts.json", "metrics.jsonl", "checkpoints"})
    EXPECT_FALSE(fs::exists(run / name)) << name;
  EXPECT_EQ(get(run / "notes.txt"), "{}");
  EXPECT_EQ(read_json(run / "run.json")["options"]["seed"], 1);
  // A resumed run keeps its own files.
  put(run / "mlflow.json", "{}");
  fs::create_directories(run / "checkpoints/step-1");
  directory.keep();
  directory.enter({{"seed", 1}}, Json::object());
  EXPECT_TRUE(fs::exists(run / "mlflow.json"));
}

TEST(Run, RefusesWhatDoesNotBelongTogether) {
  Project f;
  fs::create_directories(f.scratch / "run");
  put(f.scratch / "run/notes.txt", "mine");
  expect_error(ErrorKind::kUsage, {"run", "has notes.txt", "new or an empty directory"}, [&] { f.run(); });
  EXPECT_EQ(get(f.scratch / "run/notes.txt"), "mine");
  f.options.out = (f.scratch / "run2").string();

  put(f.scratch / "target/tokenizer.json", R"({"version": "1.0", "model": {"vocab": {"b": 0}}})");
  expect_error(ErrorKind::kData, {"another tokenizer", "data ingest"}, [&] { f.run(); });
  toy_tokenizer(f.scratch / "target");

  f.options.draft = "prune:4";
  expect_error(ErrorKind::kUsage, {"prune:4", "3 layers"}, [&] { f.run(); });
  f.options.draft = "prune:2";

  model::DecoderConfig wide = toy_config(2);
  wide.vocab_size = 30;
  put(f.scratch / "wide.json", model::to_json(wide).dump());
  f.options.draft = "config:" + (f.scratch / "wide.json").string();
  f.options.out = (f.scratch / "run3").string();
  expect_error(ErrorKind::kModel, {"vocab_size 30", "24"}, [&] { f.run(); });
  put(f.scratch / "wide.json", "{");
  expect_error(ErrorKind::kModel, {"wide.json"}, [&] { f.run(); });
  f.options.draft = "config:" + (f.scratch / "missing.json").string();
  expect_error(ErrorKind::kModel, {"missing.json"}, [&] { f.run(); });
  f.options.draft = "prune:2";
  f.options.sequence_length = 49;
  expect_error(ErrorKind::kUsage, {"--sequence-length 49", "48"}, [&] { f.run(); });
  f.options.sequence_length = 0;
  fs::remove(f.scratch / "target/model.safetensors");
  expect_error(ErrorKind::kModel, {"target"}, [&] { f.run(); });
}

TEST(Run, FlagsHaveRanges) {
  const auto refused = [](const std::string& flag, auto change) {
    DistillOptions o;
    o.target = o.data = o.out = "x";
    o.draft = "prune:1";
    validate(o);
    change(o);
    expect_error(ErrorKind::kUsage, {flag}, [&] { validate(o); });
  };
  refused("--target", [](auto& o) { o.target = ""; });
  refused("--draft", [](auto& o) { o.draft = "prune"; });
  refused("--loss", [](auto& o) { o.loss = "mse"; });
  refused("--recompute", [](auto& o) { o.recompute = true, o.on_policy = 2; });
  refused("--lr", [](auto& o) { o.learning_rate = -1; });
  refused("--lr", [](auto& o) { o.learning_rate = std::nan(""); });
  refused("--batch-tokens", [](auto& o) { o.batch_tokens = 1; });
  refused("--accumulate", [](auto& o) { o.accumulate = -1; });
  refused("--temperature", [](auto& o) { o.temperature = 0; });
  refused("--epochs", [](auto& o) { o.epochs = -1; });
  refused("--max-steps", [](auto& o) { o.max_steps = -5; });
  refused("--beta2", [](auto& o) { o.beta2 = 1; });
  refused("--evaluate-rows", [](auto& o) { o.evaluate_rows = -1; });
  refused("--teacher-cache", [](auto& o) { o.teacher_cache_mib = -1; });
}

TEST(Run, RowsLongerThanTheModelsAreCutAndCounted) {
  Project f;
  auto rows = toy_rows(150, 5);
  rows[3].tokens.assign(60, 7);
  rows[3].loss_mask.assign(60, 1);
  write_data(f.scratch / "data", f.scratch / "target", rows, toy_rows(40, 6));
  f.options.max_steps = 2;
  const DistillResult r = f.run();
  EXPECT_EQ(r.json["data"]["cut_rows"], 1);
  EXPECT_EQ(r.json["data"]["cut_tokens"], 12);
  EXPECT_EQ(r.json["data"]["sequence_length"], 48);
}

}  // namespace
}  // namespace specdec::distill
