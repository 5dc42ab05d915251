// Tests the checks of EAGLE-3 heads in `specdec package lint`.
#include "tests/package/lint_case.h"

namespace specdec::deploy {
namespace {

using specdec::testing::get;
using specdec::testing::put;

TEST_F(LintTest, MapOfTheReducedVocabulary) {
  offsets_[5] = 3;  // the same id twice
  write("head");
  expect("head", true, "vocab-map", "d2t[5] = 3");
  for (const int64_t beyond : {kVocab, int64_t{-6}, INT64_MAX, INT64_MIN}) {
    offsets_[5] = beyond;
    write("head");
    expect("head", true, "vocab-map", "d2t[5] = ");
  }
  // ModelOpt orders the ids by frequency. Engines compute i + d2t[i], so they accept any order.
  offsets_[5] = 7, offsets_[6] = 4;
  write("head");
  expect("head", false, "vocab-map", "the ids do not ascend: vLLM, SGLang and llama.cpp take any order; specdec");
  offsets_[5] = 5, offsets_[6] = 6;
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
  // The standard deviation of 10,240 random draws varies by 0.7 %, so several deviations are tried.
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
  // A head whose embedding is a byte-identical copy of the target's is accepted.
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

TEST_F(LintTest, TheTargetsEmbeddingInAnotherDtype) {
  std::vector<float> theirs(kVocab * kHidden);
  SafetensorsDirectory(dir / "target").read("model.embed_tokens.weight", std::as_writable_bytes(std::span(theirs)));
  std::vector<uint16_t> rounded;
  for (const float x : theirs) rounded.push_back(static_cast<uint16_t>((std::bit_cast<uint32_t>(x) + 0x8000u) >> 16));
  std::vector<std::vector<std::byte>> kept;
  std::vector<TensorToWrite> list;
  {
    const SafetensorsDirectory head(dir / "head");
    const std::vector<std::string> names = head.names();
    kept.reserve(names.size());
    for (const std::string& name : names) {
      head.read(name, kept.emplace_back(head.entry(name).bytes));
      list.push_back({name, head.entry(name).dtype, head.entry(name).shape, kept.back()});
    }
  }
  list.push_back({"embed_tokens.weight", "BF16", {kVocab, kHidden}, {}});
  const auto with_embedding = [&](std::span<const std::byte> bytes) {
    list.back() = {"embed_tokens.weight", "BF16", {kVocab, kHidden}, bytes};
    write_safetensors(dir / "head/model.safetensors", list);
  };
  with_embedding(std::as_bytes(std::span(rounded)));
  expect("head", false, "embedding", "the target's in another dtype: vLLM uses this copy, SGLang the target's");
  rounded[7] = static_cast<uint16_t>(rounded[7] + 0x80);  // twice as large in bf16
  with_embedding(std::as_bytes(std::span(rounded)));
  expect("head", true, "embedding", "not the target's");
}

// vLLM, SGLang and specdec's loader read norm_before_fc under eagle_config first.
TEST_F(LintTest, NormBeforeFcInEitherPlace) {
  tensors_["head"]["input_norm.weight"] = {3 * kHidden};
  write("head");
  for (const char* place : {"/eagle_config/norm_before_fc", "/norm_before_fc"}) {
    const std::string before = get(dir / "head/config.json");
    expect("head", true, "tensors", "input_norm.weight: unknown");
    edit("head", place, true);
    EXPECT_TRUE(lint("head").empty()) << place << canonical_json(sarif(lint("head")));
    put(dir / "head/config.json", before);
  }
}

TEST_F(LintTest, HeadsThatEnginesLoadAndSpecdecDoesNot) {
  const std::string config = get(dir / "head/config.json");
  const auto tensors = tensors_["head"];
  const auto again = [&] {
    put(dir / "head/config.json", config);
    tensors_["head"] = tensors;
    write("head");
  };
  edit("head", "/eagle_config/use_aux_hidden_state", false);
  tensors_["head"].erase("fc.weight");
  write("head");
  expect("head", false, "fc-input", "need no fc; specdec itself does not run");
  again();
  edit("head", "/use_aux_norm", true);
  for (const char* name : {"aux_norm_low", "aux_norm_mid", "aux_norm_high"})
    tensors_["head"][name + std::string(".weight")] = {kHidden};
  write("head");
  ASSERT_EQ(lint("head").size(), 2u) << canonical_json(sarif(lint("head")));
  for (const Finding& f : lint("head")) {
    EXPECT_FALSE(f.fatal) << f.text;
    EXPECT_NE(f.text.find("SGLang alone reads"), std::string::npos) << f.text;
  }
  again();
  edit("head", "/architectures", Json::array({"Eagle3Qwen3ForCausalLM"}));
  EXPECT_NE(lint("head").back().text.find("q_norm.weight: missing"), std::string::npos) << lint("head").back().text;
  for (const char* part : {"q", "k"})
    tensors_["head"][std::string("midlayer.self_attn.") + part + "_norm.weight"] = {kSize};
  write("head");
  expect("head", false, "format", "a Qwen3 layer (q_norm, k_norm): vLLM alone loads it");
}

TEST_F(LintTest, AHeadThatTakesTheTargetsOutputMatrix) {
  edit("head", "/draft_vocab_size", kVocab);
  tensors_["head"].erase("lm_head.weight");
  offsets_.clear();
  write("head");
  expect("head", false, "tensors", "lm_head.weight: missing: vLLM takes the target's; SGLang keeps a random one");
  edit("head", "/draft_vocab_size", nullptr);
  const auto findings = lint("head");
  ASSERT_EQ(findings.size(), 2u) << canonical_json(sarif(findings));
  EXPECT_EQ(findings[0].rule, "nulls");
  EXPECT_NE(findings[1].text.find("vLLM takes the target's, and so does SGLang"), std::string::npos)
      << findings[1].text;
  EXPECT_FALSE(findings[0].fatal || findings[1].fatal);
}

// The original EAGLE-3 heads have "LlamaForCausalLM" as their architecture.
TEST_F(LintTest, AHeadWithTheNameOfAModel) {
  edit("head", "/architectures", Json::array({"LlamaForCausalLM"}));
  expect("head", false, "architectures", "write LlamaForCausalLMEagle3");
  for (auto it = tensors_["head"].begin(); it != tensors_["head"].end();)
    it = it->first.find("hidden_norm") != std::string::npos || it->first.find("midlayer") == 0
             ? tensors_["head"].erase(it)
             : std::next(it);
  offsets_.clear();
  write("head");
  expect("head", true, "format", "an EAGLE-1 or -2 head: not checked here, and specdec does not run it: vLLM (method");
}

TEST_F(LintTest, TargetsWhoseHiddenStatesAnEngineDoesNotHandOut) {
  edit("target", "/model_type", "mixtral");
  bind();
  std::string engines;
  for (const Finding& f : lint("head")) {
    EXPECT_EQ(f.rule, "target-support");
    EXPECT_FALSE(f.fatal);
    engines += f.text.substr(0, f.text.find(" does not")) + ", ";
  }
  EXPECT_EQ(engines, "vLLM 0.33, SGLang 0.5.23, TensorRT-LLM 1.3, ");
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

}  // namespace
}  // namespace specdec::deploy
