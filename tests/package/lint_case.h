// Models for the tests of `specdec package lint`: a target, a small draft model and an EAGLE-3 head.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <random>

#include "deploy/package/lint.h"
#include "deploy/package/lint_rules.h"
#include "deploy/package/quantise.h"
#include "tests/package/pair.h"

namespace specdec::deploy {

inline constexpr int64_t kVocab = 640, kHidden = 16, kMlp = 32, kHeads = 2, kSize = 8, kKept = 320, kLayers = 12;

// A target with all of its tensors, a small draft model and an EAGLE-3 head for it. They have no fault until a test
// adds one.
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
    testing::put(dir / "target/config.json", config_.dump());
    Json small = config_;
    small["num_hidden_layers"] = 1;
    testing::put(dir / "draft/config.json", small.dump());
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
    testing::put(dir / "head/config.json", head.dump());
    std::map<std::string, Shape> eagle = {
        {"fc.weight", {kHidden, 3 * kHidden}}, {"norm.weight", {kHidden}}, {"lm_head.weight", {kKept, kHidden}}};
    add_layer(eagle, "midlayer.", 2 * kHidden);
    eagle["midlayer.hidden_norm.weight"] = {kHidden};
    tensors_["head"] = eagle;
    for (int64_t i = 0; i < kKept; ++i) offsets_.push_back(i);  // every second id is kept
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
      testing::put(dir / model / "specdec.json",
                   to_json(DraftBinding{fingerprint_model(dir / "target"),
                                        "eagle3",
                                        "ce",
                                        {{"acceptance", {{"after", {{"value", 0.7}, {"ci", {0.68, 0.72}}}}}}}})
                       .dump());
  }
  void edit(const std::string& model, const std::string& pointer, const Json& value) {
    Json config = Json::parse(testing::get(dir / model / "config.json"));
    if (value.is_discarded())
      config.erase(pointer.substr(1));
    else
      config[Json::json_pointer(pointer)] = value;
    testing::put(dir / model / "config.json", config.dump());
  }
  void drop(const std::string& model, const std::string& key) {
    Json config = Json::parse(testing::get(dir / model / "config.json"));
    config.erase(key);
    testing::put(dir / model / "config.json", config.dump());
  }
  // Returns all findings except "measured", which says that no validation report was given.
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

}  // namespace specdec::deploy
