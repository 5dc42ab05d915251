#include "deploy/package/launch.h"

#include "tests/package/launch_case.h"

namespace specdec::deploy {
namespace {

using specdec::testing::get;
using specdec::testing::put;

TEST(Launch, VllmGetsTheScheduleAsJson) {
  const testing::Scratch dir;
  const auto arguments = arguments_of("vllm.sh", files(plan())["vllm.sh"], "vllm", dir);
  const std::string package = (dir / "a \"package\" \\ here").string();
  ASSERT_GE(arguments.size(), 2u);
  EXPECT_EQ(arguments[0], "serve");
  EXPECT_EQ(arguments[1], package + "/target");
  EXPECT_EQ(after(arguments, "--served-model-name"), "org/Chat-7B");
  EXPECT_EQ(after(arguments, "--dtype"), "bfloat16");
  EXPECT_EQ(after(arguments, "--port"), "1234");
  EXPECT_EQ(Json::parse(after(arguments, "--speculative-config")),
            (Json{{"method", "draft_model"},
                  {"model", package + "/draft"},
                  {"num_speculative_tokens", 5},
                  {"draft_sample_method", "probabilistic"},
                  {"rejection_sample_method", "standard"},
                  {"num_speculative_tokens_per_batch_size", {{1, 4, 5}, {5, 16, 3}, {17, 64, 0}}}}));
}

TEST(Launch, VllmFollowsWhatWasValidated) {
  const testing::Scratch dir;
  LaunchPlan p = plan();
  p.verify = "block";
  p.greedy = true;
  p.schedule = {{1, 64, 4}};
  p.target_reference = "/models/it's";
  const auto arguments = arguments_of("vllm.sh", files(p)["vllm.sh"], "vllm", dir);
  EXPECT_EQ(arguments[1], "/models/it's");
  const Json config = Json::parse(after(arguments, "--speculative-config"));
  EXPECT_EQ(config["rejection_sample_method"], "block");
  EXPECT_EQ(config["draft_sample_method"], "greedy");
  EXPECT_EQ(config["num_speculative_tokens"], 4);
  EXPECT_FALSE(config.contains("num_speculative_tokens_per_batch_size"));
}

TEST(Launch, TheEnvironmentChoosesAVariant) {
  const testing::Scratch dir;
  LaunchPlan p = plan();
  p.variants = {"fp8", "int8"};
  const std::string package = (dir / "a \"package\" \\ here").string();
  const auto drafts = [&] {
    return std::pair(
        Json::parse(after(arguments_of("vllm.sh", files(p)["vllm.sh"], "vllm", dir), "--speculative-config"))["model"]
            .get<std::string>(),
        after(arguments_of("sglang.sh", files(p)["sglang.sh"], "python", dir), "--speculative-draft-model-path"));
  };
  EXPECT_EQ(drafts(), std::pair(package + "/draft", package + "/draft"));
  ::setenv("DRAFT", "int8", 1);
  EXPECT_EQ(drafts(), std::pair(package + "/draft-int8", package + "/draft-int8"));
  ::setenv("DRAFT", "int4", 1);
  EXPECT_NE(std::system("bash \"$SCRIPT\" 2>/dev/null"), 0);
  ::unsetenv("DRAFT");
}

TEST(Launch, SglangStandaloneHasOneK) {
  const testing::Scratch dir;
  LaunchPlan p = plan();
  p.verify = "block";
  auto made = files(p);
  const auto arguments = arguments_of("sglang.sh", made["sglang.sh"], "python", dir);
  const std::string package = (dir / "a \"package\" \\ here").string();
  EXPECT_EQ(arguments[1], "sglang.launch_server");
  EXPECT_EQ(after(arguments, "--model-path"), package + "/target");
  EXPECT_EQ(after(arguments, "--speculative-algorithm"), "STANDALONE");
  EXPECT_EQ(after(arguments, "--speculative-draft-model-path"), package + "/draft");
  EXPECT_EQ(after(arguments, "--speculative-num-steps"), "5");
  EXPECT_EQ(after(arguments, "--speculative-num-draft-tokens"), "6");
  EXPECT_EQ(after(arguments, "--speculative-eagle-topk"), "1");
  // SGLang refuses or ignores these flags if the draft is a separate model (STANDALONE).
  for (const char* flag :
       {"--speculative-use-rejection-sampling", "--speculative-use-block-verification", "--speculative-adaptive"})
    EXPECT_EQ(std::count(arguments.begin(), arguments.end(), flag), 0) << flag;
  EXPECT_EQ(made.count("sglang-schedule.json"), 0u);
}

TEST(Launch, SglangEagleGetsScheduleAndRule) {
  const testing::Scratch dir;
  LaunchPlan p = plan();
  p.kind = DraftKind::kEagle3;
  p.verify = "block";
  auto made = files(p);
  const auto arguments = arguments_of("sglang.sh", made["sglang.sh"], "python", dir);
  EXPECT_EQ(after(arguments, "--speculative-algorithm"), "EAGLE3");
  for (const char* flag :
       {"--speculative-use-rejection-sampling", "--speculative-use-block-verification", "--speculative-adaptive"})
    EXPECT_EQ(std::count(arguments.begin(), arguments.end(), flag), 1) << flag;
  EXPECT_EQ(after(arguments, "--speculative-adaptive-config"),
            (dir / "a \"package\" \\ here/engines/sglang-schedule.json").string());
  const Json schedule = Json::parse(made["sglang-schedule.json"]);
  EXPECT_EQ(schedule["1"]["candidate_steps"], Json::array({5}));
  EXPECT_EQ(schedule["5"]["candidate_steps"], Json::array({3}));
  EXPECT_EQ(schedule["17"]["candidate_steps"], Json::array({0}));
  EXPECT_NE(made["vllm.sh"].find("\\\"method\\\":\\\"eagle3\\\""), std::string::npos) << made["vllm.sh"];
  EXPECT_NE(made["tensorrt-llm.yaml"].find("decoding_type: Eagle3\n"), std::string::npos);
}

// SGLang 0.5.23 refuses to start with rejection sampling if the head has fewer tokens than the target. Block
// verification turns rejection sampling on.
TEST(Launch, SglangSamplesOnlyFromAWholeVocabulary) {
  for (const char* verify : {"token", "block"})
    for (const bool greedy : {false, true}) {
      LaunchPlan p = plan();
      p.kind = DraftKind::kEagle3;
      p.head.reduced_vocabulary = true;
      p.verify = verify;
      p.greedy = greedy;
      const std::string script = files(p)["sglang.sh"];
      EXPECT_NE(script.find("--speculative-algorithm EAGLE3"), std::string::npos);
      for (const char* flag : {"--speculative-use-rejection-sampling", "--speculative-use-block-verification"})
        EXPECT_EQ(script.find(flag), std::string::npos) << verify << script;
    }
}

// An engine can serve a head only if it exposes the hidden states of the target's family and can read the head's
// layout. Otherwise its launch file must start without the head.
TEST(Launch, AHeadThatAnEngineCannotServeIsLeftOut) {
  const std::map<std::string, std::string> file_of = {{"vllm", "vllm.sh"},
                                                      {"kserve", "kserve.yaml"},
                                                      {"helm", "helm-values.yaml"},
                                                      {"sglang", "sglang.sh"},
                                                      {"tensorrt-llm", "tensorrt-llm.yaml"},
                                                      {"llama.cpp", "llama.cpp.sh"},
                                                      {"specdec", "specdec.toml"}};
  const auto served = [&](const HeadFacts& head) {
    LaunchPlan p = plan();
    p.kind = DraftKind::kEagle3;
    p.head = head;
    auto made = files(p);
    std::string engines;
    for (const std::string& engine : known_engines()) {
      const std::string& text = made[file_of.at(engine)];
      const bool drafts = text.find("eagle3") != std::string::npos || text.find("EAGLE3") != std::string::npos ||
                          text.find("Eagle3") != std::string::npos || text.find("max-k") != std::string::npos;
      EXPECT_EQ(drafts, text.find("so this starts without the draft") == std::string::npos) << text;
      if (drafts) engines += engine + " ";
    }
    EXPECT_EQ(made.count("sglang-schedule.json"), engines.find("sglang") != std::string::npos ? 1u : 0u);
    return engines;
  };
  const std::string all = "specdec vllm sglang tensorrt-llm llama.cpp kserve helm ";
  EXPECT_EQ(served({.target_type = "llama"}), all);
  EXPECT_EQ(served({.target_type = "qwen3"}), all);
  EXPECT_EQ(served({.target_type = "qwen3_moe"}), all);
  EXPECT_EQ(served({.target_type = "mistral"}), "specdec vllm sglang llama.cpp kserve helm ");
  EXPECT_EQ(served({.target_type = "qwen2"}), "specdec vllm sglang kserve helm ");
  EXPECT_EQ(served({.target_type = "phi3"}), "specdec vllm sglang kserve helm ");
  EXPECT_EQ(served({.target_type = "gemma2"}), "specdec ");
  EXPECT_EQ(served({.target_type = "gemma3_text"}), "specdec sglang ");
  EXPECT_EQ(served({.target_type = "mixtral"}), "specdec llama.cpp ");
  EXPECT_EQ(served({.target_type = "olmo2"}), "specdec vllm kserve helm ");
  EXPECT_EQ(served({.target_type = "smollm3"}), "specdec vllm kserve helm ");
  EXPECT_EQ(served({.target_type = "unheard_of"}), all);
  EXPECT_EQ(served({.target_type = "llama", .is_speculators_layout = true}),
            "specdec vllm tensorrt-llm llama.cpp kserve helm ");
  EXPECT_EQ(served({.target_type = "llama", .norm_before_residual = true}),
            "specdec vllm tensorrt-llm llama.cpp kserve helm ");
  EXPECT_EQ(served({.target_type = "llama", .has_fc_norm = true}), "specdec vllm sglang tensorrt-llm kserve helm ");
  EXPECT_EQ(served({.target_type = "llama", .hides_norm_before_fc = true}),
            "specdec vllm sglang tensorrt-llm kserve helm ");
}

TEST(Launch, WhatIsReadOfAHead) {
  const Json target = {{"model_type", "qwen3"}};
  HeadFacts facts = head_facts(target, {{"vocab_size", 512}, {"draft_vocab_size", 256}});
  EXPECT_EQ(facts.target_type, "qwen3");
  EXPECT_TRUE(facts.reduced_vocabulary);
  EXPECT_FALSE(facts.is_speculators_layout);
  for (const Json& whole : {Json{{"vocab_size", 512}, {"draft_vocab_size", 512}}, Json{{"vocab_size", 512}},
                            Json{{"vocab_size", 512}, {"draft_vocab_size", nullptr}}})
    EXPECT_FALSE(head_facts(target, whole).reduced_vocabulary) << whole;
  facts = head_facts(target, {{"speculators_model_type", "eagle3"},
                              {"speculators_config", Json::object()},
                              {"draft_vocab_size", 256},
                              {"norm_before_residual", true},
                              {"eagle_aux_hidden_state_layer_ids", {1, 2, 4}},
                              {"eagle_config", {{"norm_before_fc", true}}},
                              {"transformer_layer_config", {{"vocab_size", 512}}}});
  EXPECT_TRUE(facts.reduced_vocabulary && facts.is_speculators_layout && facts.norm_before_residual);
  EXPECT_TRUE(facts.hides_norm_before_fc);
  EXPECT_EQ(facts.taps, (std::vector<int64_t>{1, 2, 4}));
  head_facts(Json::array(), 3);  // a config.json that is no object is ignored
}

TEST(Launch, TensorrtLlmRangesByTheirLastBatch) {
  const std::string yaml = files(plan())["tensorrt-llm.yaml"];
  for (const char* line :
       {"\ndtype: bfloat16\n", "\nreturn_perf_metrics: true\n", "\ndisable_overlap_scheduler: true\n",
        "  decoding_type: Draft_Target\n", "  speculative_model: draft\n", "  max_draft_len: 5\n",
        "  draft_len_schedule:\n    4: 5\n    16: 3\n"})
    EXPECT_NE(yaml.find(line), std::string::npos) << line << " not in\n" << yaml;
  EXPECT_EQ(yaml.find("    64:"), std::string::npos) << "no speculation beyond the last key";
  const std::string older = files(plan())["tensorrt-llm-1.2.yaml"];
  EXPECT_NE(older.find("--extra_llm_api_options engines/tensorrt-llm-1.2.yaml"), std::string::npos);
  EXPECT_NE(older.find("  decoding_type: DraftTarget\n"), std::string::npos) << older;
  for (const std::string& file : {yaml, older}) {
    EXPECT_NE(file.find("\nreturn_perf_metrics: true\n"), std::string::npos) << "without it there are no counters";
    EXPECT_NE(file.find("/prometheus/metrics"), std::string::npos);
  }
  LaunchPlan head = plan();
  head.kind = DraftKind::kEagle3;
  head.head.taps = {1, 2, 4};
  for (const char* file : {"tensorrt-llm.yaml", "tensorrt-llm-1.2.yaml"})
    EXPECT_NE(files(head)[file].find("  eagle3_layers_to_capture: [0, 1, 3]\n"), std::string::npos)
        << files(head)[file];
  EXPECT_NE(older.find("  draft_len_schedule:\n    1: 5\n    5: 3\n    17: 0\n"), std::string::npos) << older;
  LaunchPlan rising = plan();
  rising.schedule = {{1, 1, 2}, {2, 8, 4}};
  EXPECT_EQ(files(rising)["tensorrt-llm.yaml"].find("draft_len_schedule"), std::string::npos)
      << "the first entry must be the longest";
}

TEST(Launch, KserveCarriesTheSameConfig) {
  const std::string yaml = files(plan())["kserve.yaml"];
  EXPECT_NE(yaml.find("kind: LLMInferenceService"), std::string::npos);
  EXPECT_NE(yaml.find("name: 'org-chat-7b'\n"), std::string::npos);
  LaunchPlan number = plan();
  number.name = "1.5";
  EXPECT_NE(files(number)["kserve.yaml"].find("    name: '1.5'\n"), std::string::npos) << "a name is a string";
  const size_t begin = yaml.find("--speculative-config ''{") + 23, end = yaml.find("}''", begin) + 1;
  const Json config = Json::parse(yaml.substr(begin, end - begin));
  EXPECT_EQ(config["model"], "/mnt/package/draft");
  EXPECT_EQ(config["num_speculative_tokens_per_batch_size"], (Json{{1, 4, 5}, {5, 16, 3}, {17, 64, 0}}));
}

TEST(Launch, HelmValues) {
  LaunchPlan p = plan();
  p.target_reference = "org/it's";
  const std::string yaml = files(p)["helm-values.yaml"];
  EXPECT_NE(yaml.find("    - name: 'org-chat-7b'\n"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("      modelURL: 'org/it''s'\n"), std::string::npos) << yaml;
  const size_t begin = yaml.find("- '{") + 3, end = yaml.find("}'\n", begin) + 1;
  EXPECT_EQ(Json::parse(yaml.substr(begin, end - begin))["num_speculative_tokens_per_batch_size"],
            (Json{{1, 4, 5}, {5, 16, 3}, {17, 64, 0}}));
  p.name = "--/A.b/" + std::string(80, 'x') + "-";
  EXPECT_NE(files(p)["helm-values.yaml"].find("- name: 'a-b-" + std::string(56, 'x') + "'\n"), std::string::npos)
      << "RFC 1123";
}

// Writes launch files to CASE/engines/ below $SPECDEC_LAUNCH_OUT, where engine_parsers_test.py reads them.
TEST(Launch, FilesForTheEnginesParsers) {
  const char* const out = std::getenv("SPECDEC_LAUNCH_OUT");
  if (!out) GTEST_SKIP() << "SPECDEC_LAUNCH_OUT is not set: engine_parsers_test.py sets it";
  std::map<std::string, LaunchPlan> cases;
  for (const bool eagle3 : {false, true})
    for (const char* verify : {"token", "block"}) {
      LaunchPlan p = plan();
      p.kind = eagle3 ? DraftKind::kEagle3 : DraftKind::kModel;
      p.verify = verify;
      p.head.target_type = "llama";
      cases[std::string(eagle3 ? "eagle3-" : "standalone-") + verify] = p;
      p.greedy = true;
      p.schedule = {{1, 256, 4}};
      cases[std::string(eagle3 ? "eagle3-" : "standalone-") + verify + "-greedy-one-k"] = p;
    }
  for (const char* verify : {"token", "block"}) {
    LaunchPlan p = cases[std::string("eagle3-") + verify];
    p.head.reduced_vocabulary = true;
    cases[std::string("eagle3-reduced-") + verify] = p;
  }
  for (const char* family : {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3",
                             "smollm3", "olmo2", "mixtral"}) {
    LaunchPlan p = cases["eagle3-token"];
    p.head.target_type = family;
    cases[std::string("family-eagle3-") + family] = p;
  }
  cases["plain"] = plan();
  cases["plain"].schedule = {{1, 256, 0}};
  cases["lost"] = cases["plain"];
  cases["lost"].verdict = Verdict::kNotWorthIt,
  cases["lost"].gate = "not worth it: speed-up at batch 1 0.912 [0.873, 0.953]: it's slower", cases["lost"].tried_k = 2;
  cases["fp32"] = plan();
  cases["fp32"].dtype = "fp32";
  for (const char* format : {"fp8", "int8"}) {
    cases[std::string("variant-") + format] = plan();
    cases[std::string("variant-") + format].variants = {"fp8", "int8"};
  }
  for (const auto& [name, p] : cases)
    for (const auto& [file, text] : files(p)) put(fs::path(out) / name / "engines" / file, text);
}

TEST(Launch, SpecdecSettings) {
  const std::string toml = files(plan())["specdec.toml"];
  for (const char* line : {"[serve]\n", "k = \"auto\"\n", "max-k = 5\n", "verify = \"token\"\n", "dtype = \"bf16\"\n",
                           "# Schedule: batch 1-4: K 5 (predicted), 5-16: K 3 (predicted), 17-64: plain\n"})
    EXPECT_NE(toml.find(line), std::string::npos) << toml;
}

// The gate may have measured in fp32 on a CPU; engines other than specdec serve in the checkpoint's own dtype.
TEST(Launch, OtherEnginesServeInTheCheckpointsDtype) {
  LaunchPlan p = plan();
  p.dtype = "fp32";
  p.checkpoint_dtype = checkpoint_dtype({{"torch_dtype", "bfloat16"}});
  for (const auto& [name, text] : files(p)) {
    if (name == "sglang-schedule.json") continue;
    const bool ours = name == "specdec.toml";
    if (name == "llama.cpp.sh") {  // specdec export --type auto takes the checkpoint's dtype
      EXPECT_NE(text.find(" target auto\n"), std::string::npos) << text;
      continue;
    }
    EXPECT_EQ(text.find("fp32") != std::string::npos, ours) << name << text;
    EXPECT_EQ(text.find("float32"), std::string::npos) << name << text;
    EXPECT_EQ(text.find("f32"), std::string::npos) << name << text;
    EXPECT_TRUE(ours || text.find("bfloat16") != std::string::npos || text.find("bf16") != std::string::npos) << name;
  }
  EXPECT_EQ(checkpoint_dtype({{"text_config", {{"dtype", "float16"}}}}), "fp16");
  EXPECT_EQ(checkpoint_dtype({{"torch_dtype", "bfloat16"}, {"quantization_config", Json::object()}}), "auto");
  EXPECT_EQ(checkpoint_dtype(Json::object()), "auto");
}

TEST(Launch, NoSpeculationWhereNoKPays) {
  LaunchPlan p = plan();
  p.schedule = {{1, 256, 0}};
  for (const auto& [name, text] : files(p)) EXPECT_EQ(text.find("draft"), std::string::npos) << name << "\n" << text;
}

TEST(Launch, PlanOfAReport) {
  ValidationReport report = testing::sample_report({}, {});
  report.target.id = std::string(64, 'a');
  const LaunchPlan p = launch_plan(report, "n", "");
  EXPECT_EQ(p.schedule, report.schedule);
  EXPECT_EQ(p.max_k(), 4);
  EXPECT_EQ(p.verify, "block");
  EXPECT_EQ(p.dtype, "fp32");
  EXPECT_FALSE(p.greedy);
  EXPECT_EQ(p.gate, "pass: acceptance 0.70 above the floor");
  report.schedule.clear();
  EXPECT_EQ(launch_plan(report, "n", "").max_k(), 4) << "the K of the measured speed-up";
  report.best_k = 0;
  EXPECT_EQ(launch_plan(report, "n", "").max_k(), 3) << "the K of the roll-outs";
  report.schedule = {{2, 8, 1}};
  EXPECT_EQ(launch_plan(report, "n", "").schedule[0].low, 1) << "batch 1 is always covered";
}

// In launch files, neighbouring schedule rows with the same K form one range, even if their speed-ups differ.
TEST(Launch, EveryFileSaysWhatTheGateSaidAndWhatEachRowRestsOn) {
  ValidationReport report = testing::sample_report({}, {});
  const auto made = files(launch_plan(report, "n", ""));
  for (const auto& [name, text] : made) {
    if (name == "sglang-schedule.json") continue;
    EXPECT_NE(text.find("# Gate: pass: acceptance 0.70 above the floor\n"), std::string::npos) << name << text;
    EXPECT_NE(
        text.find("# Schedule: batch 1: K 4 (validated: measured 1.40 [1.30, 1.50]), 2-4: K 4 (predicted 1.35), "),
        std::string::npos)
        << name << text;
    EXPECT_EQ(text.find("did not pass"), std::string::npos) << name;
  }
  EXPECT_NE(made.at("vllm.sh").find("[[1,4,4],[5,16,3],[17,64,0]]"), std::string::npos) << made.at("vllm.sh");
}

// If the gate did not pass, launch files must start without the draft; only their comments explain how to draft.
TEST(Launch, ADraftThatDidNotPassStartsPlain) {
  for (const Verdict verdict : {Verdict::kNotWorthIt, Verdict::kFail, Verdict::kInconclusive, Verdict::kNotLossless})
    for (const bool earlier : {false, true})
      for (const bool eagle3 : {false, true}) {
        ValidationReport report = testing::sample_report({}, {}, verdict);
        report.target.id = report.draft.id = std::string(64, 'a');
        report.reason = "speed-up at batch 1 0.912 [0.873, 0.953]:\nexport EVIL=1\xc2\x85k: v";
        report.best_k = 2;
        report.speedup = {0.912, {0.873, 0.953}, 8};
        report.schedule = {{1, 4, 2}};  // a schedule as earlier versions wrote it
        if (!earlier) report.schedule = {{1, 1, 0, true, 2, 0.912, {0.873, 0.953}}, {2, 4, 0, false, 2, 1.1}};
        LaunchPlan p = launch_plan(report, "n", "");
        p.kind = eagle3 ? DraftKind::kEagle3 : DraftKind::kModel;
        p.variants = {"fp8"};
        EXPECT_EQ(p.max_k(), 0);
        for (const auto& [name, text] : files(p)) {
          EXPECT_NE(text.find("0.912 [0.873, 0.953]"), std::string::npos) << name;
          EXPECT_NE(text.find("batch 1"), std::string::npos) << name;
          EXPECT_NE(text.find("K 2 measured 0.91 [0.87, 0.95]"), std::string::npos) << name << text;
          EXPECT_NE(text.find("To draft nevertheless"), std::string::npos) << name;
          EXPECT_EQ(text.find('\xc2'), std::string::npos)
              << name << ": some parsers of YAML take U+0085 for a line's end";
          std::istringstream lines(text);
          for (std::string line; std::getline(lines, line);) {
            if (line.rfind("#", 0) == 0) continue;
            EXPECT_EQ(line.find("draft"), std::string::npos) << name << ": " << line;
            EXPECT_EQ(line.find("specul"), std::string::npos) << name << ": " << line;
            EXPECT_EQ(line.find("EVIL"), std::string::npos) << name << ": " << line;
          }
        }
        EXPECT_NE(files(p)["specdec.toml"].find("\nk = 0\n"), std::string::npos);
        EXPECT_NE(files(p)["tensorrt-llm.yaml"].find("\n#   max_draft_len: 2\n"), std::string::npos)
            << files(p)["tensorrt-llm.yaml"];
        EXPECT_NE(files(p)["vllm.sh"].find("add --speculative-config '{"), std::string::npos) << files(p)["vllm.sh"];
      }
}

TEST(Launch, ChosenEnginesOnly) {
  EXPECT_EQ(launch_files(plan(), {"specdec"}).size(), 1u);
  testing::expect_error(ErrorKind::kUsage, {"'triton'", "tensorrt-llm"}, [] { launch_files(plan(), {"triton"}); });
}

}  // namespace
}  // namespace specdec::deploy
