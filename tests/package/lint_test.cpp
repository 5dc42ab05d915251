#include "tests/package/lint_case.h"

namespace specdec::deploy {
namespace {

using specdec::testing::get;
using specdec::testing::put;

TEST_F(LintTest, GoodDraftsHaveNoFindings) {
  EXPECT_TRUE(lint("draft").empty()) << canonical_json(sarif(lint("draft")));
  EXPECT_TRUE(lint("head").empty()) << canonical_json(sarif(lint("head")));
}

TEST_F(LintTest, VocabularyAndItsPadding) {
  edit("head", "/vocab_size", kVocab + 8);
  const auto findings = lint("head");
  EXPECT_TRUE(std::any_of(findings.begin(), findings.end(),
                          [](const Finding& f) { return f.fatal && f.rule == "vocab-size"; }));
  zero_rows_ = 5;
  write("draft");
  expect("draft", false, "vocab-size", "the last 5 rows are zeros");
}

TEST_F(LintTest, Tokenizer) {
  put(dir / "head/tokenizer.json", get(dir / "target/tokenizer.json"));
  EXPECT_TRUE(lint("head").empty());
  put(dir / "head/tokenizer.json", "{}");
  expect("head", true, "tokenizer", "byte for byte");
}

TEST_F(LintTest, QuantisedMatricesAreKnown) {
  const auto about_tensors = [&](const std::string& draft) {
    std::string texts;
    for (const Finding& f : lint_draft(dir / "target", dir / draft, std::nullopt))
      if (f.rule == "tensors") texts += f.text + "\n";
    return texts;
  };
  for (const std::string format : {"fp8", "int8"}) {
    quantise_draft(dir / "draft", format, dir / format, {});
    EXPECT_EQ(about_tensors(format), "");
    edit(format, "/quantization_config", nullptr);
    EXPECT_NE(about_tensors(format).find(format == "fp8" ? "q_proj.weight_scale: unknown" : "q_proj.weight: missing"),
              std::string::npos)
        << about_tensors(format);
  }
}

TEST_F(LintTest, MissingUnknownAndMisshapenTensors) {
  tensors_["head"].erase("midlayer.hidden_norm.weight");
  write("head");
  expect("head", true, "tensors", "midlayer.hidden_norm.weight: missing");
  tensors_["head"]["midlayer.hidden_norm.weight"] = {kHidden + 1};
  write("head");
  expect("head", true, "tensors", "shape [17], config.json says [16]");
  tensors_["head"]["midlayer.hidden_norm.weight"] = {kHidden};
  tensors_["head"]["midlayer.extra.weight"] = {3};
  write("head");
  expect("head", true, "tensors", "midlayer.extra.weight: unknown: vLLM refuses the head, SGLang ignores it silently");
  tensors_["draft"].erase("lm_head.weight");
  write("draft");
  expect("draft", true, "tensors", "lm_head.weight: missing");
  edit("draft", "/tie_word_embeddings", true);
  EXPECT_TRUE(lint("draft").empty());
  edit("draft", "/model_type", "qwen3");
  const auto findings = lint("draft");
  ASSERT_EQ(findings.size(), 2u);
  EXPECT_NE(findings[0].text.find("self_attn.k_norm.weight: missing"), std::string::npos) << findings[0].text;
}

TEST_F(LintTest, Rope) {
  edit("head", "/rope_theta", 5e5);
  expect("head", false, "rope", "rope_theta 500000.0, in rope_parameters 10000.0");
  drop("head", "rope_theta");
  expect("head", false, "rope", "write both");
}

TEST_F(LintTest, ContextLayersAndNulls) {
  edit("head", "/max_position_embeddings", 64);
  expect("head", false, "context", "64 below the target's 128");
  edit("head", "/max_position_embeddings", 128);
  edit("head", "/num_hidden_layers", 2);
  expect("head", true, "layers", "expected 1");
  edit("head", "/num_hidden_layers", 1);
  edit("head", "/target_hidden_size", nullptr);
  expect("head", false, "nulls", "target_hidden_size: null");
}

TEST_F(LintTest, Binding) {
  fs::remove(dir / "head/specdec.json");
  expect("head", false, "binding", "no specdec.json");
  bind();
  edit("target", "/eos_token_id", 4);
  EXPECT_EQ(lint("head")[0].rule, "binding");
  EXPECT_TRUE(lint("head")[0].fatal);
}

TEST_F(LintTest, Measured) {
  const auto measured = [&](const ValidationReport& report) {
    const auto findings = lint_draft(dir / "target", dir / "draft", report);
    return findings.empty() ? std::string() : findings[0].rule + ": " + findings[0].text;
  };
  EXPECT_EQ(lint_draft(dir / "target", dir / "draft", std::nullopt)[0].rule, "measured");
  ValidationReport report = testing::sample_report(fingerprint_model(dir / "target"), fingerprint_model(dir / "draft"));
  EXPECT_EQ(measured(report), "");
  report.alpha = {0.3, {0.28, 0.32}, 40};
  EXPECT_NE(measured(report).find("acceptance 0.3 in the report, the trainer had 0.7"), std::string::npos)
      << measured(report);
  report.draft = report.target;
  EXPECT_NE(measured(report).find("another draft"), std::string::npos);
}

TEST_F(LintTest, WhatTheGateSaid) {
  ValidationReport report =
      testing::sample_report(fingerprint_model(dir / "target"), fingerprint_model(dir / "draft"), Verdict::kNotWorthIt);
  report.reason = "speed-up at batch 1 0.912 [0.873, 0.953]";
  report.schedule = {{1, 1, 0, true, 2, 0.912, {0.873, 0.953}}};
  const auto texts = [&] {
    std::string all;
    for (const Finding& f : lint_draft(dir / "target", dir / "draft", report))
      if (f.rule == "gate") all += (f.fatal ? "error: " : "warning: ") + f.text + "\n";
    return all;
  };
  EXPECT_EQ(texts(), "warning: the gate did not pass: not worth it: speed-up at batch 1 0.912 [0.873, 0.953]\n");
  report.reason += std::string(200, '!') + "; the end";
  EXPECT_EQ(texts().find("the end"), std::string::npos) << "the line of the gate has it in full";
  report.reason = "speed-up at batch 1 0.912 [0.873, 0.953]";
  report.speedup = {0.912, {0.873, 0.953}, 8};
  report.schedule = {{1, 4, 2}};  // a schedule as earlier versions wrote it
  EXPECT_NE(texts().find("warning: the schedule drafts although no gain was measured: batch 1-4: K 2 (predicted): "
                         "validate and package the pair again"),
            std::string::npos)
      << texts();
  report.verdict = Verdict::kPass;
  report.speedup = {1.4, {1.3, 1.5}, 8};
  EXPECT_EQ(texts(), "");
}

TEST_F(LintTest, FormatsThatNothingLoads) {
  for (const auto& [config, text] :
       std::vector<std::pair<Json, std::string>>{{{{"medusa_num_heads", 4}}, "Medusa"},
                                                 {{{"model_type", "mlp_speculator"}}, "ArcticInference"},
                                                 {{{"architectures", {"LlamaForCausalLMEagle"}}}, "EAGLE-1"},
                                                 {{{"architectures", {"DFlashDraftModel"}}}, "parallel drafter"},
                                                 {{{"architectures", {"DSparkDraftModel"}}}, "parallel drafter"},
                                                 {{{"architectures", {"Qwen3_5MTPDraftModel"}}}, "multi-token"},
                                                 {{{"architectures", {"PEagleDraftModel"}}}, "P-EAGLE"}}) {
    put(dir / "head/config.json", config.dump());
    expect("head", true, "format", text);
  }
  put(dir / "head/config.json", "[]");
  testing::expect_error(ErrorKind::kModel, {"expected an object"}, [&] { lint("head"); });
}

TEST_F(LintTest, Sarif) {
  edit("head", "/num_hidden_layers", 2);
  const Json log = sarif(lint("head"));
  EXPECT_EQ(log["version"], "2.1.0");
  const Json& run = log["runs"][0];
  EXPECT_EQ(run["tool"]["driver"]["rules"].size(), lint_rules().size());
  EXPECT_EQ(run["results"][0]["ruleId"], "layers");
  EXPECT_EQ(run["results"][0]["level"], "error");
  EXPECT_EQ(run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            (dir / "head/config.json").string());
}

}  // namespace
}  // namespace specdec::deploy
