#include "deploy/package/lint.h"

#include <random>

#include "deploy/package/lint_rules.h"
#include "deploy/package/quantise.h"
#include "tests/package/pair.h"

namespace specdec::deploy {
namespace {

using specdec::testing::get;
using specdec::testing::put;

constexpr int64_t kVocab = 640, kHidden = 16, kMlp = 32, kHeads = 2, kSize = 8, kKept = 320, kLayers = 12;

// A target with all of its tensors, a small draft model and an EAGLE-3 head for it. None of them has a fault until a
// test adds one.
class LintTest : public ::testing::Test {
 protected:
  using Shape = std::vector<int64_t>;

  LintTest() {
    config_ = {{"architectures", {"LlamaForCausalLM"}},
               {"model_type", "llama"},
               {"vocab_size", kVocab},
               {"hidden_size", kHidden},
               {"intermediate_size", kMlp},
               {"num_attention_heads", kHeads},
               {"num_key_value_heads", kHeads},
               {"head_dim", kSize},
               {"num_hidden_layers", kLayers},
               {"torch_dtype", "float32"},
               {"dtype", "float32"},
               {"rope_theta", 1e4},
               {"rope_parameters", {{"rope_theta", 1e4}}},
               {"max_position_embeddings", 128},
               {"eos_token_id", 2},
               {"tie_word_embeddings", false}};
    testing::write_tiny_model(dir / "target", {.vocab = kVocab, .hidden = kHidden});
    testing::write_tiny_model(dir / "draft", {.vocab = kVocab, .hidden = kHidden});
    put(dir / "target/config.json", config_.dump());
    Json small = config_;
    small["num_hidden_layers"] = 1;
    put(dir / "draft/config.json", small.dump());
    std::map<std::string, Shape> model = {{"model.embed_tokens.weight", {kVocab, kHidden}},
                                          {"lm_head.weight", {kVocab, kHidden}},
                                          {"model.norm.weight", {kHidden}}};
    add_layer(model, "model.layers.0.", kHidden);
    tensors_["draft"] = model;
    write("draft");
    Json head = config_;
    head.update(Json{{"architectures", {"LlamaForCausalLMEagle3"}},
                     {"num_hidden_layers", 1},
                     {"draft_vocab_size", kKept},
                     {"norm_before_residual", false},
                     {"eagle_config", {{"use_aux_hidden_state", true}}}});
    put(dir / "head/config.json", head.dump());
    std::map<std::string, Shape> eagle = {
        {"fc.weight", {kHidden, 3 * kHidden}}, {"norm.weight", {kHidden}}, {"lm_head.weight", {kKept, kHidden}}};
    add_layer(eagle, "midlayer.", 2 * kHidden);
    eagle["midlayer.hidden_norm.weight"] = {kHidden};
    tensors_["head"] = eagle;
    for (int64_t i = 0; i < kKept; ++i) offsets_.push_back(i);  // keeps every second id
    for (int64_t i = 0; i < kVocab; ++i) marks_.push_back(i % 2 == 0);
    write("head");
    bind();
  }

  static void add_layer(std::map<std::string, Shape>& names, const std::string& at, int64_t input) {
    for (const char* part : {"q", "k", "v"}) names[at + "self_attn." + part + "_proj.weight"] = {kHeads * kSize, input};
    names[at + "self_attn.o_proj.weight"] = {kHidden, kHeads * kSize};
    for (const char* part : {"gate", "up"}) names[at + "mlp." + part + "_proj.weight"] = {kMlp, kHidden};
    names[at + "mlp.down_proj.weight"] = {kHidden, kMlp};
    for (const char* part : {"input", "post_attention"}) names[at + part + "_layernorm.weight"] = {kHidden};
  }

  void write(const std::string& model) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, model == "head" ? deviation_ : 0.3f);
    std::map<std::string, std::vector<float>> values;
    std::vector<TensorToWrite> list;
    for (const auto& [name, shape] : tensors_[model]) {
      int64_t count = 1;
      for (const int64_t d : shape) count *= d;
      auto& v = values[name];
      for (int64_t i = 0; i < count; ++i) v.push_back(normal(random));
      if (name == "lm_head.weight" && zero_rows_ > 0) std::fill(v.end() - zero_rows_ * kHidden, v.end(), 0.0f);
      list.push_back({name, "F32", shape, std::as_bytes(std::span(v))});
    }
    if (model == "head" && !offsets_.empty()) {
      list.push_back({"d2t", "I64", {static_cast<int64_t>(offsets_.size())}, std::as_bytes(std::span(offsets_))});
      list.push_back({"t2d", marks_type_, {static_cast<int64_t>(marks_.size())}, std::as_bytes(std::span(marks_))});
    }
    write_safetensors(dir / model / "model.safetensors", list);
  }
  void bind() {
    for (const char* model : {"draft", "head"})
      put(dir / model / "specdec.json",
          to_json(DraftBinding{fingerprint_model(dir / "target"),
                               "eagle3",
                               "ce",
                               {{"acceptance", {{"after", {{"value", 0.7}, {"ci", {0.68, 0.72}}}}}}}})
              .dump());
  }
  void edit(const std::string& model, const std::string& pointer, const Json& value) {
    Json config = Json::parse(get(dir / model / "config.json"));
    if (value.is_discarded())
      config.erase(pointer.substr(1));
    else
      config[Json::json_pointer(pointer)] = value;
    put(dir / model / "config.json", config.dump());
  }
  void drop(const std::string& model, const std::string& key) {
    Json config = Json::parse(get(dir / model / "config.json"));
    config.erase(key);
    put(dir / model / "config.json", config.dump());
  }
  // Returns all findings except the finding that nothing was measured.
  std::vector<Finding> lint(const std::string& model) const {
    std::vector<Finding> findings = lint_draft(dir / "target", dir / model, std::nullopt);
    std::erase_if(findings, [](const Finding& f) { return f.rule == "measured"; });
    return findings;
  }
  void expect(const std::string& model, bool fatal, const std::string& rule, const std::string& text) {
    const auto findings = lint(model);
    ASSERT_EQ(findings.size(), 1u) << canonical_json(sarif(findings));
    EXPECT_EQ(findings[0].fatal, fatal);
    EXPECT_EQ(findings[0].rule, rule);
    EXPECT_NE(findings[0].text.find(text), std::string::npos) << findings[0].text;
    const auto& rules = lint_rules();
    EXPECT_TRUE(std::any_of(rules.begin(), rules.end(), [&](const LintRule& r) { return r.id == findings[0].rule; }));
  }

  testing::Scratch dir;
  Json config_;
  std::map<std::string, std::map<std::string, Shape>> tensors_;
  std::vector<int64_t> offsets_;
  std::vector<uint8_t> marks_;
  std::string marks_type_ = "BOOL";
  float deviation_ = 0.3f;
  int64_t zero_rows_ = 0;
};

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

TEST_F(LintTest, MapOfTheReducedVocabulary) {
  offsets_[5] = 3;  // repeats the id before it
  write("head");
  expect("head", true, "vocab-map", "d2t[5] = 3");
  offsets_[5] = 5;
  marks_[10] = 0;
  write("head");
  expect("head", true, "vocab-map", "t2d marks other ids");
  marks_[10] = 1;
  marks_type_ = "U8";
  write("head");
  expect("head", true, "vocab-map", "expected BOOL");
  marks_type_ = "BOOL";
  write("head");
  edit("target", "/eos_token_id", Json::array({2, 3}));
  bind();
  expect("head", false, "vocab-map", "special token 3");
  edit("target", "/eos_token_id", 2);
  bind();
  drop("head", "draft_vocab_size");
  const auto findings = lint("head");
  EXPECT_TRUE(std::any_of(findings.begin(), findings.end(), [](const Finding& f) {
    return f.rule == "vocab-map" && f.text.find("missing") != std::string::npos;
  }));
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
  expect("head", true, "tensors", "midlayer.extra.weight: unknown");
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

TEST_F(LintTest, EitherNameOfTheLayer) {
  auto& head = tensors_["head"];
  for (auto it = head.begin(); it != head.end();)
    if (it->first.rfind("midlayer.", 0) == 0) {
      head["layers.0." + it->first.substr(9)] = it->second;
      it = head.erase(it);
    } else {
      ++it;
    }
  write("head");
  EXPECT_TRUE(lint("head").empty());
}

TEST_F(LintTest, AHeadThatWasNeverTrained) {
  drop("head", "draft_vocab_size");
  edit("head", "/draft_vocab_size", kVocab);
  tensors_["head"]["lm_head.weight"] = {kVocab, kHidden};
  offsets_.clear();
  marks_.clear();
  deviation_ = 0.02f;
  bool found = false;
  // The deviation of 10,240 random draws is right only within 0.7 %, so several deviations are tried.
  for (float off : {1.0f, 0.9985f, 1.0015f, 0.997f, 1.003f, 0.9955f, 1.0045f}) {
    deviation_ = 0.02f * off;
    write("head");
    const auto findings = lint("head");
    found |= findings.size() == 1 && findings[0].text.find("never trained") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

TEST_F(LintTest, Embedding) {
  tensors_["head"]["embed_tokens.weight"] = {kVocab, kHidden};
  write("head");
  expect("head", true, "embedding", "not the target's");
  // The target's own bytes are accepted.
  const SafetensorsDirectory head(dir / "head");
  std::vector<std::vector<std::byte>> bytes;
  std::vector<TensorToWrite> list;
  const std::vector<std::string> names = head.names();
  bytes.reserve(names.size());
  for (const std::string& name : names) {
    auto& data = bytes.emplace_back(head.entry(name).bytes);
    head.read(name, data);
    if (name == "embed_tokens.weight") SafetensorsDirectory(dir / "target").read("model.embed_tokens.weight", data);
    list.push_back({name, head.entry(name).dtype, head.entry(name).shape, data});
  }
  write_safetensors(dir / "head/model.safetensors", list);
  EXPECT_TRUE(lint("head").empty()) << canonical_json(sarif(lint("head")));
}

TEST_F(LintTest, InputOfFc) {
  tensors_["head"]["fc.weight"] = {kHidden, 2 * kHidden};
  write("head");
  expect("head", true, "fc-input", "shape [16,32], expected [16,48]");
}

TEST_F(LintTest, NormBeforeResidual) {
  edit("head", "/norm_before_residual", true);
  expect("head", true, "norm-before-residual", "vLLM only");
  drop("head", "norm_before_residual");
  expect("head", false, "norm-before-residual", "write false");
}

TEST_F(LintTest, Rope) {
  edit("head", "/rope_theta", 5e5);
  expect("head", false, "rope", "rope_theta 500000.0, in rope_parameters 10000.0");
  drop("head", "rope_theta");
  expect("head", false, "rope", "write both");
}

TEST_F(LintTest, TappedLayers) {
  const Json standard = {2, 6, 9}, others = {1, 5, 8};
  edit("head", "/eagle_aux_hidden_state_layer_ids", standard);
  EXPECT_TRUE(lint("head").empty()) << "the ones that SGLang takes by itself";
  edit("head", "/eagle_aux_hidden_state_layer_ids", {1, 5, 7});
  expect("head", true, "aux-layers", "SGLang does not read it and takes [2,6,9]");
  edit("head", "/eagle_config/eagle_aux_hidden_state_layer_ids", {0, 4, 6});
  EXPECT_TRUE(lint("head").empty());
  edit("head", "/eagle_config/eagle_aux_hidden_state_layer_ids", {1, 5, 7});
  expect("head", true, "aux-layers", "less 1");
  drop("head", "eagle_aux_hidden_state_layer_ids");
  expect("head", true, "aux-layers", "new runner does not read it");
  edit("head", "/eagle_config/eagle_aux_hidden_state_layer_ids", {5, 1, 40});
  EXPECT_NE(lint("head")[0].text.find("ascending"), std::string::npos);
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
  report.speedup = {0.912, {0.873, 0.953}, 8};
  report.schedule = {{1, 4, 2}};  // as earlier versions wrote it
  EXPECT_NE(texts().find("warning: the schedule drafts although no gain was measured: batch 1-4: K 2 (predicted): "
                         "validate and package the pair again"),
            std::string::npos)
      << texts();
  report.verdict = Verdict::kPass;
  report.speedup = {1.4, {1.3, 1.5}, 8};
  EXPECT_EQ(texts(), "");
}

TEST_F(LintTest, Speculators) {
  Json config = Json::parse(get(dir / "head/config.json")), inner = config;
  for (const char* key : {"draft_vocab_size", "norm_before_residual", "eagle_config"}) inner.erase(key);
  Json outer = {{"architectures", {"Eagle3Speculator"}},
                {"speculators_model_type", "eagle3"},
                {"draft_vocab_size", kKept},
                {"norm_before_residual", true},
                {"eagle_aux_hidden_state_layer_ids", {1, 5, 7}},
                {"transformer_layer_config", inner},
                {"target_hidden_size", nullptr},
                {"speculators_config",
                 {{"algorithm", "eagle3"},
                  {"proposal_methods", {{{"proposal_type", "greedy"}, {"speculative_tokens", 3}}}},
                  {"verifier", {{"name_or_path", "org/target"}}}}}};
  put(dir / "head/config.json", outer.dump());
  expect("head", false, "format", "vLLM alone reads it");
  edit("head", "/speculators_config/verifier/name_or_path", (dir / "target").string());
  ASSERT_EQ(lint("head").size(), 2u);
  EXPECT_NE(lint("head")[1].text.find("no repository of the hub"), std::string::npos);
  edit("head", "/speculators_config/verifier/name_or_path", "org/target");
  drop("head", "norm_before_residual");
  EXPECT_NE(lint("head")[1].text.find("vLLM takes true"), std::string::npos);
}

TEST_F(LintTest, FormatsThatNothingLoads) {
  for (const auto& [config, text] :
       std::vector<std::pair<Json, std::string>>{{{{"medusa_num_heads", 4}}, "Medusa"},
                                                 {{{"model_type", "mlp_speculator"}}, "ArcticInference"},
                                                 {{{"architectures", {"LlamaForCausalLMEagle"}}}, "EAGLE-1"},
                                                 {{{"architectures", {"DFlashDraftModel"}}}, "parallel drafter"}}) {
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
