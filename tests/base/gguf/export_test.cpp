// What becomes of config.json, of the parameters and of the tokenizer in a GGUF file.
#include <cmath>
#include <numbers>

#include "base/gguf/export_tensors.h"
#include "base/gguf/export_tokenizer.h"
#include "tests/base/gguf/sample_checkpoint.h"

namespace specdec::gguf {
namespace {

using testing::byte_level_tokenizer;
using testing::error_of;
using testing::llama_config;
using testing::sentencepiece_tokenizer;

ExportedConfig exported(const Json& config) {
  return export_config(config, export_family(config["model_type"].get<std::string>(), "config.json"), "config.json");
}
std::string refused_config(const Json& config) {
  return error_of([&] { exported(config); }, ErrorKind::kModel);
}
const StoredValue* find(const Metadata& metadata, const std::string& key) {
  for (const auto& [name, value] : metadata)
    if (name == key) return &value;
  return nullptr;
}
template <class T>
T value_of(const Metadata& metadata, const std::string& key) {
  const StoredValue* const found = find(metadata, key);
  EXPECT_NE(found, nullptr) << key;
  return found == nullptr ? T() : std::get<T>(*found);
}

TEST(ExportConfig, WritesTheShapeOfLlama) {
  const ExportedConfig out = exported(llama_config());
  for (const auto& [key, expected] : std::map<std::string, uint32_t>{{"context_length", 128},
                                                                     {"embedding_length", 32},
                                                                     {"block_count", 2},
                                                                     {"feed_forward_length", 64},
                                                                     {"attention.head_count", 4},
                                                                     {"attention.head_count_kv", 2},
                                                                     {"attention.key_length", 8},
                                                                     {"attention.value_length", 8},
                                                                     {"vocab_size", 16},
                                                                     {"rope.dimension_count", 8}})
    EXPECT_EQ(value_of<uint32_t>(out.metadata, "llama." + key), expected) << key;
  EXPECT_EQ(value_of<float>(out.metadata, "llama.attention.layer_norm_rms_epsilon"), 1e-5f);
  EXPECT_EQ(value_of<float>(out.metadata, "llama.rope.freq_base"), 10000);
  EXPECT_FALSE(out.shape.tied);
  EXPECT_TRUE(out.factors.empty() && out.warnings.empty());
}

TEST(ExportConfig, WritesRopeScalingAsLlamaCppReadsIt) {
  Json config = llama_config();
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  ExportedConfig out = exported(config);
  EXPECT_EQ(value_of<std::string>(out.metadata, "llama.rope.scaling.type"), "linear");
  EXPECT_EQ(value_of<float>(out.metadata, "llama.rope.scaling.factor"), 4);
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 64}};
  out = exported(config);
  EXPECT_EQ(value_of<uint32_t>(out.metadata, "llama.rope.scaling.original_context_length"), 64u);
  config["rope_scaling"]["attention_factor"] = 3.0;
  EXPECT_NE(refused_config(config).find("attention_factor"), std::string::npos);
  config.erase("rope_scaling");
  config["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 2.0}, {"rope_theta", 5000.0}};
  out = exported(config);
  EXPECT_EQ(value_of<float>(out.metadata, "llama.rope.freq_base"), 5000);
  ASSERT_EQ(out.warnings.size(), 1u);
  config["rope_parameters"]["rope_type"] = "longrope";
  EXPECT_NE(refused_config(config).find("longrope"), std::string::npos);
}

TEST(ExportConfig, Llama3DividesTheFrequenciesOfLongWaves) {
  Json config = llama_config();
  config["rope_parameters"] = {{"rope_type", "llama3"},   {"factor", 8.0},
                               {"rope_theta", 10000.0},   {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
  const ExportedConfig out = exported(config);
  ASSERT_EQ(out.factors.size(), 1u);
  EXPECT_EQ(out.factors[0].first, "rope_freqs.weight");
  // Waves of 2π·10000^(i/4) tokens within 64: 10.2, 1.02, 0.10 and 0.01 turns.
  const double turns = 64 / (2 * std::numbers::pi * 10), kept = (turns - 1) / 3;
  const std::vector<float> expected = {1, static_cast<float>(1 / ((1 - kept) / 8 + kept)), 8, 8};
  EXPECT_EQ(out.factors[0].second, expected);
}

TEST(ExportConfig, GemmaHasWindowsAndCaps) {
  Json config = llama_config();
  config.update({{"model_type", "gemma2"},
                 {"hidden_activation", "gelu_pytorch_tanh"},
                 {"query_pre_attn_scalar", 8},
                 {"sliding_window", 24},
                 {"tie_word_embeddings", true}});
  ExportedConfig out = exported(config);
  EXPECT_EQ(value_of<uint32_t>(out.metadata, "gemma2.attention.sliding_window"), 24u);
  EXPECT_EQ(value_of<float>(out.metadata, "gemma2.attn_logit_softcapping"), 50);
  EXPECT_EQ(value_of<float>(out.metadata, "gemma2.final_logit_softcapping"), 30);
  EXPECT_EQ(find(out.metadata, "gemma2.attention.sliding_window_pattern"), nullptr);
  config["layer_types"] = {"full_attention", "sliding_attention"};  // a pruned draft
  out = exported(config);
  EXPECT_EQ(value_of<std::vector<bool>>(out.metadata, "gemma2.attention.sliding_window_pattern"),
            (std::vector<bool>{false, true}));
  config["query_pre_attn_scalar"] = 16;
  EXPECT_NE(refused_config(config).find("query_pre_attn_scalar"), std::string::npos);
  config["query_pre_attn_scalar"] = 8;
  config["tie_word_embeddings"] = false;
  EXPECT_NE(refused_config(config).find("tie_word_embeddings"), std::string::npos);
}

TEST(ExportConfig, RefusesWhatLlamaCppDoesNotRun) {
  const auto with = [](const char* key, const Json& value) {
    Json config = llama_config();
    config[key] = value;
    return config;
  };
  EXPECT_NE(error_of([] { export_family("mixtral", "config.json"); }, ErrorKind::kModel).find("llama, mistral"),
            std::string::npos);
  EXPECT_NE(refused_config(with("hidden_act", "gelu")).find("gelu"), std::string::npos);
  EXPECT_NE(refused_config(with("quantization_config", {{"bits", 4}})).find("quantised"), std::string::npos);
  EXPECT_NE(refused_config(with("draft_vocab_size", 8)).find("EAGLE-3"), std::string::npos);
  EXPECT_NE(refused_config(with("partial_rotary_factor", 0.5)).find("4 of 8"), std::string::npos);
  Json config = with("model_type", "qwen2");
  config["head_dim"] = 16;
  EXPECT_NE(refused_config(config).find("hidden_size together (32)"), std::string::npos);
  config = with("model_type", "smollm3");
  config["no_rope_layers"] = {1, 0};
  EXPECT_NE(refused_config(config).find("fourth"), std::string::npos);
  config = with("model_type", "mistral");
  config["sliding_window"] = 16;
  EXPECT_EQ(exported(config).warnings.size(), 1u) << "llama.cpp has no windows for Mistral";
}

std::set<std::string> names() {
  std::set<std::string> out;
  for (const auto& [name, shape] : testing::llama_parameters()) out.insert(name);
  return out;
}

TEST(ExportTensors, NamesEveryParameter) {
  const ExportFamily& llama = export_family("llama", "m");
  const auto tensors = exported_tensors(llama, exported(llama_config()), names(), "m");
  EXPECT_EQ(tensors.size(), names().size());
  std::map<std::string, ExportedTensor> by_name;
  for (const ExportedTensor& t : tensors) by_name[t.name] = t;
  EXPECT_EQ(by_name["token_embd.weight"].source, "model.embed_tokens.weight");
  EXPECT_EQ(by_name["output.weight"].source, "lm_head.weight");
  EXPECT_EQ(by_name["blk.1.ffn_norm.weight"].source, "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(by_name["blk.0.attn_q.weight"].permuted_heads, 4);
  EXPECT_EQ(by_name["blk.0.attn_k.weight"].permuted_heads, 2);
  EXPECT_EQ(by_name["blk.0.attn_v.weight"].permuted_heads, 0);
  const auto gemma = exported_tensors(
      export_family("gemma2", "m"),
      [] {
        ExportedConfig config;
        config.shape.layers = 0;
        config.shape.tied = true;
        return config;
      }(),
      {"model.embed_tokens.weight", "model.norm.weight"}, "m");
  ASSERT_EQ(gemma.size(), 2u);
  EXPECT_EQ(gemma[1].plus, 1) << "Gemma's norms are stored as 1 + weight";
}

TEST(ExportTensors, RefusesMissingAndForeignParameters) {
  const ExportFamily& llama = export_family("llama", "m");
  std::set<std::string> present = names();
  const auto refused = [&] {
    return error_of([&] { exported_tensors(llama, exported(llama_config()), present, "m"); }, ErrorKind::kModel);
  };
  present.insert("model.layers.0.self_attn.q_norm.weight");
  EXPECT_NE(refused().find("q_norm.weight: llama.cpp has no place"), std::string::npos);
  present = names();
  present.erase("model.layers.1.mlp.up_proj.weight");
  EXPECT_NE(refused().find("has no tensor model.layers.1.mlp.up_proj.weight"), std::string::npos);
}

TokenizerFiles files_of(const Json& tokenizer) {
  return {.where = "tokenizer.json",
          .tokenizer = tokenizer,
          .tokenizer_config = {{"bos_token", "<bos>"}, {"eos_token", "<eos>"}},
          .config = llama_config(),
          .generation_config = Json::object(),
          .chat_template = "{{ template }}"};
}

TEST(ExportTokenizer, WritesByteLevelTokens) {
  const ExportedTokenizer out = export_tokenizer(files_of(byte_level_tokenizer()), 12);
  EXPECT_EQ(value_of<std::string>(out.metadata, "tokenizer.ggml.model"), "gpt2");
  EXPECT_EQ(value_of<std::string>(out.metadata, "tokenizer.ggml.pre"), "gpt-2");
  EXPECT_EQ(value_of<std::vector<std::string>>(out.metadata, "tokenizer.ggml.tokens"),
            (std::vector<std::string>{"a", "b", "\u0120", "ab", "\u0120a", "\u0120ab", "\n", "<bos>", "<eos>", "<turn>",
                                      "<tool>", "[PAD11]"}));
  EXPECT_EQ(value_of<std::vector<int32_t>>(out.metadata, "tokenizer.ggml.token_type"),
            (std::vector<int32_t>{1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 4, 5}));
  EXPECT_EQ(value_of<std::vector<std::string>>(out.metadata, "tokenizer.ggml.merges"),
            (std::vector<std::string>{"a b", "\u0120 a", "\u0120 ab"}));
  EXPECT_EQ(value_of<uint32_t>(out.metadata, "tokenizer.ggml.bos_token_id"), 7u);
  EXPECT_EQ(value_of<uint32_t>(out.metadata, "tokenizer.ggml.eos_token_id"), 8u);
  EXPECT_EQ(value_of<uint32_t>(out.metadata, "tokenizer.ggml.eot_token_id"), 9u) << "config.json's second EOS id";
  EXPECT_TRUE(value_of<bool>(out.metadata, "tokenizer.ggml.add_bos_token"));
  EXPECT_FALSE(value_of<bool>(out.metadata, "tokenizer.ggml.add_eos_token"));
  EXPECT_EQ(value_of<std::string>(out.metadata, "tokenizer.chat_template"), "{{ template }}");
}

TEST(ExportTokenizer, ReconstructsScoresFromMerges) {
  const ExportedTokenizer out = export_tokenizer(files_of(sentencepiece_tokenizer()), 265);
  EXPECT_EQ(value_of<std::string>(out.metadata, "tokenizer.ggml.model"), "llama");
  EXPECT_TRUE(value_of<bool>(out.metadata, "tokenizer.ggml.add_space_prefix"));
  const auto scores = value_of<std::vector<float>>(out.metadata, "tokenizer.ggml.scores");
  const auto types = value_of<std::vector<int32_t>>(out.metadata, "tokenizer.ggml.token_type");
  ASSERT_EQ(scores.size(), 265u);
  EXPECT_EQ((std::vector<float>(scores.begin() + 259, scores.end())), (std::vector<float>{0, -1, -2, -3, -3, -3}))
      << "ab is made before \u2581a, this before \u2581ab; the rest is never made";
  EXPECT_EQ((std::vector<int32_t>(types.begin(), types.begin() + 4)), (std::vector<int32_t>{2, 3, 3, 6}));
}

TEST(ExportTokenizer, RefusesMergesThatScoresCannotExpress) {
  const auto refused = [](const Json& merges) {
    Json tokenizer = sentencepiece_tokenizer();
    tokenizer["model"]["merges"] = merges;
    return error_of([&] { export_tokenizer(files_of(tokenizer), 265); }, ErrorKind::kModel);
  };
  EXPECT_NE(refused({"a b", "\u2581 a", "\u2581 ab"}).find("would merge"), std::string::npos)
      << "llama.cpp merges \u2581a and b, too";
  EXPECT_NE(refused({"a b", "\u2581 ab", "\u2581 a", "\u2581a b"}).find("not neighbours"), std::string::npos);
  EXPECT_NE(refused({"a b c"}).find("without a space"), std::string::npos);
}

TEST(ExportTokenizer, RecognisesTheDivisionsOfLlamaCppAlone) {
  const std::string llama3 =
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
      "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
  const auto pre = [](const Json& steps, bool ignores) {
    Json tokenizer = byte_level_tokenizer();
    tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    tokenizer["model"]["ignore_merges"] = ignores;
    return value_of<std::string>(export_tokenizer(files_of(tokenizer), 12).metadata, "tokenizer.ggml.pre");
  };
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}},
             words = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const auto split = [](const std::string& pattern) {
    return Json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  };
  EXPECT_EQ(pre({split(llama3), bytes}, true), "llama-bpe");
  EXPECT_EQ(pre({split(llama3), bytes}, false), "dbrx");
  EXPECT_EQ(pre({{{"type", "Digits"}, {"individual_digits", true}}, words}, false), "smollm");
  // The tokenizer.json of a GGUF file has llama.cpp's own patterns.
  const std::string gpt2 = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
  EXPECT_EQ(pre({split("\\p{N}"), split(gpt2), bytes}, false), "smollm");
  EXPECT_EQ(pre({split(gpt2), bytes}, false), "gpt-2");
  for (const Json& steps : {Json{split(llama3 + "|x"), bytes}, Json{bytes}, Json{split(llama3), words}})
    EXPECT_NE(error_of([&] { pre(steps, false); }, ErrorKind::kModel).find("pre_tokenizer: llama.cpp has none"),
              std::string::npos)
        << steps;
  EXPECT_NE(error_of([&] { pre({words}, true); }, ErrorKind::kModel).find("ignore_merges"), std::string::npos);
}

TEST(ExportTokenizer, RefusesOtherTokenizers) {
  const auto refused = [](const std::function<void(Json&)>& change, int64_t vocab_size = 12) {
    Json tokenizer = byte_level_tokenizer();
    change(tokenizer);
    return error_of([&] { export_tokenizer(files_of(tokenizer), vocab_size); }, ErrorKind::kModel);
  };
  EXPECT_NE(refused([](Json& t) { t["model"]["type"] = "Unigram"; }).find("expected BPE"), std::string::npos);
  EXPECT_NE(refused([](Json& t) { t["model"] = 1; }).find("model"), std::string::npos);
  EXPECT_NE(refused([](Json&) {}, 10).find("token 10 is outside"), std::string::npos);
  EXPECT_NE(refused([](Json& t) { t["normalizer"] = {{"type", "Lowercase"}}; }).find("Lowercase"), std::string::npos);
  EXPECT_NE(refused([](Json& t) { t["added_tokens"][3]["content"] = "a"; }).find("occurs twice"), std::string::npos);
  EXPECT_NE(refused([](Json& t) { t["post_processor"] = {{"type", "RobertaProcessing"}}; }).find("post_processor"),
            std::string::npos);
  EXPECT_NE(refused([](Json& t) { t["model"]["byte_fallback"] = true; }).find("<0x00>"), std::string::npos);
  EXPECT_NE(refused([](Json& t) { t["model"]["vocab"]["a"] = -1; }).find("vocab"), std::string::npos);
}

}  // namespace
}  // namespace specdec::gguf
