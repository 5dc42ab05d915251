#include "engine/config/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "base/file.h"
#include "tests/base/scratch.h"

namespace specdec::model {
namespace {

Json minimal() {
  return {{"model_type", "llama"},    {"vocab_size", 100},      {"hidden_size", 64},
          {"intermediate_size", 128}, {"num_hidden_layers", 3}, {"num_attention_heads", 8}};
}
Json with(const char* key, Json value) {
  Json config = minimal();
  config[key] = std::move(value);
  return config;
}
DecoderConfig parse(const Json& config) { return parse_decoder_config(config, "config.json"); }

TEST(Config, Defaults) {
  const DecoderConfig c = parse(minimal());
  EXPECT_EQ(c.head_dim, 8);
  EXPECT_EQ(c.num_kv_heads, 8);
  EXPECT_EQ(c.layers.size(), 3u);
  EXPECT_FALSE(c.tie_embeddings || c.layers[0].qkv_bias || c.layers[0].out_bias || c.layers[0].mlp_bias);
  EXPECT_EQ(c.rope.theta, 10000);
  EXPECT_EQ(c.rope.kind, RopeConfig::Kind::kDefault);
  EXPECT_EQ(c.dtype, at::ScalarType::Float);
  EXPECT_TRUE(c.eos_ids.empty());
  EXPECT_EQ(c.bos_id, -1);
}

TEST(Config, RopeInBothForms) {
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  Json older = with("rope_theta", 500000.0), newer = minimal();
  older["rope_scaling"] = scaling;
  newer["rope_parameters"] = scaling;
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(parse(older).rope, parse(newer).rope);
  EXPECT_EQ(parse(older).rope.kind, RopeConfig::Kind::kLlama3);
  EXPECT_EQ(parse(older).rope.original_max_position, 64);
  Json both = older;
  both["rope_parameters"] = newer["rope_parameters"];
  EXPECT_EQ(parse(both).rope.theta, 500000.0);
  both["rope_parameters"]["rope_theta"] = 10000.0;  // now the two keys contradict each other
  EXPECT_THROW(parse(both), Error);
  Json renamed = older;
  renamed["rope_scaling"].erase("rope_type");
  renamed["rope_scaling"]["type"] = "llama3";
  EXPECT_EQ(parse(renamed).rope, parse(older).rope);
}

TEST(Config, WrittenFormIsReadBackAndHasNoNulls) {
  Json source = minimal();
  source.update(Json{{"head_dim", 16},
                     {"num_key_value_heads", 2},
                     {"attention_bias", true},
                     {"mlp_bias", true},
                     {"tie_word_embeddings", true},
                     {"dtype", "bfloat16"},
                     {"rms_norm_eps", 1e-6},
                     {"max_position_embeddings", 4096},
                     {"bos_token_id", 1},
                     {"eos_token_id", {2, 7}},
                     {"rope_parameters",
                      {{"rope_type", "llama3"},
                       {"rope_theta", 5e5},
                       {"factor", 4.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 1024}}}});
  const DecoderConfig c = parse(source), again = parse(to_json(c));
  EXPECT_EQ(to_json(again), to_json(c));
  EXPECT_EQ(again.rope, c.rope);
  EXPECT_EQ(again.eos_ids, (std::vector<int32_t>{2, 7}));
  EXPECT_EQ(again.head_dim, 16);
  EXPECT_TRUE(again.tie_embeddings && again.layers[2].qkv_bias && again.layers[2].out_bias && again.layers[2].mlp_bias);
  const Json written = to_json(c);
  for (const auto& [key, value] : written.items()) EXPECT_FALSE(value.is_null()) << key;
  EXPECT_EQ(written["dtype"], "bfloat16");
  EXPECT_EQ(written["torch_dtype"], "bfloat16");
  EXPECT_EQ(written["rope_theta"], 5e5);
  EXPECT_EQ(written["rope_scaling"]["rope_type"], "llama3");
  EXPECT_EQ(written["rope_parameters"]["rope_theta"], 5e5);
  EXPECT_FALSE(to_json(parse(minimal())).contains("rope_scaling"));
  EXPECT_FALSE(to_json(parse(minimal())).contains("bos_token_id"));
}

TEST(Config, ReducedVocabularyIsWrittenAsRanges) {
  Json json = minimal();
  json["specdec_draft_vocab"] = "0-2,5,7-8";
  const DecoderConfig c = parse_decoder_config(json, "config.json");
  EXPECT_EQ(c.draft_vocab, (std::vector<int32_t>{0, 1, 2, 5, 7, 8}));
  EXPECT_EQ(to_json(c)["specdec_draft_vocab"], "0-2,5,7-8");
  EXPECT_FALSE(to_json(parse(minimal())).contains("specdec_draft_vocab"));
  for (const char* bad : {"x", "3,", ",3", "3,3", "4,3", "3-3", "4-2", "1-", "-1", "1--2", "1 2", "99999999",
                          "0-99999999", "1,0x2", "18446744073709551617"}) {
    json["specdec_draft_vocab"] = bad;
    EXPECT_THROW(parse_decoder_config(json, "config.json"), Error) << bad;
  }
}

TEST(Config, RefusesWhatItCannotRun) {
  const auto message = [](const Json& config) -> std::string {
    try {
      parse(config);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kModel);
      return e.what();
    }
    return "accepted: " + config.dump();
  };
  const std::pair<Json, const char*> bad[] = {
      {Json::array(), "object"},
      {with("model_type", "mamba"), "supported: llama, mistral"},
      {with("model_type", 3), "model_type"},
      {with("architectures", {"LlamaForSequenceClassification"}), "LlamaForCausalLM"},
      {with("quantization_config", {{"bits", 4}}), "quant_method"},
      {with("hidden_size", 0), "hidden_size"},
      {with("hidden_size", -1), "hidden_size"},
      {with("hidden_size", int64_t{1000000000000}), "hidden_size"},
      {with("hidden_size", "64"), "hidden_size"},
      {with("hidden_size", 65), "head_dim"},
      {with("vocab_size", nullptr), "vocab_size"},
      {with("num_key_value_heads", 3), "multiple"},
      {with("num_key_value_heads", 16), "num_key_value_heads"},
      {with("head_dim", 7), "even"},
      {with("rms_norm_eps", -1.0), "rms_norm_eps"},
      {with("rope_theta", 0.0), "rope_theta"},
      {with("rope_scaling", {{"rope_type", "proportional"}, {"factor", 4.0}}), "proportional"},
      {with("rope_scaling", {{"rope_type", "llama3"}, {"factor", 4.0}}), "low_freq_factor"},
      {with("rope_scaling", "llama3"), "object"},
      {with("rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}), "per layer type"},
      {with("partial_rotary_factor", 0.5), "llama models turn whole heads"},
      {with("rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}), "turn whole heads"},
      {with("hidden_act", "relu"), "silu"},
      {with("dtype", "float8"), "float8"},
      {with("eos_token_id", 100), "eos_token_id"},
      {with("eos_token_id", {2, -1}), "eos_token_id"},
      {with("bos_token_id", "x"), "bos_token_id"},
      {with("tie_word_embeddings", 1), "tie_word_embeddings"},
  };
  for (const auto& [config, expected] : bad)
    EXPECT_NE(message(config).find(expected), std::string::npos) << message(config);
  Json disagree = with("dtype", "float32");
  disagree["torch_dtype"] = "bfloat16";
  EXPECT_NE(message(disagree).find("disagree"), std::string::npos);
  EXPECT_NO_THROW(parse(with("auto_map", {{"AutoModelForCausalLM", "evil.Model"}})));  // remote code is never run
}

// Parses a config.json with small sizes and the keys in `published`, which are those that distinguish a model family's
// published config.json (before transformers 5).
DecoderConfig family(Json published) {
  published.update({{"vocab_size", 1000},
                    {"hidden_size", 64},
                    {"intermediate_size", 96},
                    {"num_hidden_layers", 6},
                    {"num_attention_heads", 4},
                    {"num_key_value_heads", 2}});
  const DecoderConfig c = parse(published);
  EXPECT_EQ(to_json(parse(to_json(c))), to_json(c)) << c.model_type;
  return c;
}

using Windows = std::vector<int64_t>;
Windows windows(const DecoderConfig& c) {
  Windows out;
  for (const LayerConfig& layer : c.layers) out.push_back(layer.window);
  return out;
}

TEST(Config, PublishedMistralAndQwen) {
  EXPECT_EQ(windows(family({{"model_type", "mistral"}, {"sliding_window", 4096}})), Windows(6, 4096));
  EXPECT_EQ(windows(family({{"model_type", "mistral"}, {"sliding_window", nullptr}})), Windows(6, 0));
  EXPECT_EQ(windows(family({{"model_type", "mistral"}})), Windows(6, 4096));  // the default of mistral

  const Json qwen = {{"model_type", "qwen2"},
                     {"sliding_window", 131072},
                     {"max_window_layers", 4},
                     {"use_sliding_window", false},
                     {"rope_theta", 1e6}};
  EXPECT_EQ(windows(family(qwen)), Windows(6, 0));
  EXPECT_TRUE(family(qwen).layers[5].qkv_bias && !family(qwen).layers[5].out_bias);
  Json sliding = qwen;
  sliding["use_sliding_window"] = true;
  EXPECT_EQ(windows(family(sliding)), (Windows{0, 0, 0, 0, 131072, 131072}));
  EXPECT_EQ(to_json(family(sliding))["max_window_layers"], 4);
}

TEST(Config, PublishedGemma) {
  const DecoderConfig gemma2 = family({{"model_type", "gemma2"},
                                       {"hidden_act", "gelu_pytorch_tanh"},
                                       {"hidden_activation", "gelu_pytorch_tanh"},
                                       {"head_dim", 256},
                                       {"query_pre_attn_scalar", 144},
                                       {"sliding_window", 4096},
                                       {"attn_logit_softcapping", 50.0},
                                       {"final_logit_softcapping", 30.0}});
  EXPECT_EQ(windows(gemma2), (Windows{4096, 0, 4096, 0, 4096, 0}));
  EXPECT_TRUE(gemma2.tie_embeddings && gemma2.activation == Activation::kGeluTanh && gemma2.layers[0].mlp_out_norm);
  EXPECT_DOUBLE_EQ(gemma2.attention_scale(), 1.0 / 12);
  EXPECT_EQ(gemma2.embedding_scale, 8);
  EXPECT_EQ(gemma2.attention_soft_cap, 50);
  EXPECT_EQ(to_json(gemma2)["query_pre_attn_scalar"].dump(), "144");  // transformers rejects 144.0

  const DecoderConfig gemma3 = family({{"model_type", "gemma3_text"},
                                       {"head_dim", 256},
                                       {"sliding_window", 512},
                                       {"sliding_window_pattern", 3},
                                       {"rope_theta", 1e6},
                                       {"rope_local_base_freq", 10000.0},
                                       {"attn_logit_softcapping", nullptr},
                                       {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  EXPECT_EQ(windows(gemma3), (Windows{512, 512, 0, 512, 512, 0}));
  EXPECT_TRUE(gemma3.layers[0].rope == LayerRope::kLocal && gemma3.layers[2].rope == LayerRope::kGlobal);
  EXPECT_TRUE(gemma3.rope.kind == RopeConfig::Kind::kLinear && gemma3.local_rope.kind == RopeConfig::Kind::kDefault &&
              gemma3.local_rope.theta == 10000);
  EXPECT_EQ(gemma3.attention_soft_cap, 0);
}

TEST(Config, PublishedPhiAndSmolLm) {
  const Json six = {1.0, 1.1, 1.2, 1.3, 1.4, 1.5};
  const DecoderConfig phi =
      family({{"model_type", "phi3"},
              {"partial_rotary_factor", 0.75},
              {"max_position_embeddings", 131072},
              {"original_max_position_embeddings", 4096},
              {"rope_scaling", {{"type", "longrope"}, {"short_factor", six}, {"long_factor", six}}},
              {"tie_word_embeddings", true}});
  EXPECT_EQ(phi.rope.kind, RopeConfig::Kind::kLongRope);
  EXPECT_EQ(phi.rope.original_max_position, 4096);
  EXPECT_NEAR(phi.rope.attention_factor, 1.190238, 1e-6);  // sqrt(1 + log 32 / log 4096)

  const DecoderConfig smol = family({{"model_type", "smollm3"},
                                     {"no_rope_layers", {1, 1, 1, 0, 1, 1}},
                                     {"use_sliding_window", false},
                                     {"sliding_window", nullptr}});
  EXPECT_TRUE(smol.layers[3].rope == LayerRope::kNone && smol.layers[5].rope == LayerRope::kGlobal &&
              smol.rope.theta == 2e6);
}

TEST(Config, PublishedMixtureAndYarn) {
  const DecoderConfig moe = family({{"model_type", "qwen3_moe"},
                                    {"num_experts", 8},
                                    {"num_experts_per_tok", 2},
                                    {"moe_intermediate_size", 16},
                                    {"norm_topk_prob", true},
                                    {"decoder_sparse_step", 2},
                                    {"mlp_only_layers", {3}}});
  EXPECT_TRUE(!moe.layers[0].experts && moe.layers[1].experts && !moe.layers[3].experts && moe.layers[5].experts);
  EXPECT_EQ(to_json(moe)["mlp_only_layers"], (Json{0, 2, 3, 4}));

  const DecoderConfig yarn =
      family({{"model_type", "qwen3"},
              {"max_position_embeddings", 40960},
              {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}});
  EXPECT_EQ(yarn.head_dim, 128);
  EXPECT_NEAR(yarn.rope.attention_factor, 0.1 * std::log(4.0) + 1, 1e-12);
}

// Defaults of transformers 5.23: null means as many kv heads as query heads, an absent key means the family's own
// number.
TEST(Config, KeyHeadsThatAreLeftOutAreTheFamilys) {
  const std::pair<const char*, int64_t> families[] = {{"llama", 32}, {"mistral", 8}, {"qwen2", 32},
                                                      {"qwen3", 32}, {"gemma2", 4},  {"gemma3_text", 4},
                                                      {"phi3", 32},  {"smollm3", 4}, {"olmo2", 32}};
  for (const auto& [type, heads] : families) {
    Json config = minimal();
    config["model_type"] = type;
    config["hidden_size"] = 256, config["num_attention_heads"] = 32;
    EXPECT_EQ(parse(config).num_kv_heads, heads) << type;
    config["num_key_value_heads"] = nullptr;
    EXPECT_EQ(parse(config).num_kv_heads, 32) << type;
  }
  Json few = with("model_type", "qwen2");
  EXPECT_THROW(parse(few), Error) << "more heads of keys than heads";
}

TEST(Config, RefusesWhatAFamilyCannotBe) {
  const auto message = [](const char* type, const Json& extra) -> std::string {
    Json config = minimal();
    config["model_type"] = type;
    config["num_key_value_heads"] = 4;
    config.update(extra);
    try {
      parse(config);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kModel);
      return e.what();
    }
    return "accepted";
  };
  const std::tuple<const char*, Json, const char*> bad[] = {
      {"gemma3", Json::object(), "image encoder"},
      {"mistral",
       {{"layer_types", {"full_attention", "sliding_attention", "full_attention"}}},
       "same attention in every layer"},
      {"qwen3",
       {{"layer_types", {"full_attention", "sliding_attention", "full_attention"}}, {"sliding_window", 8}},
       "layer 1 has sliding_attention, and there is no window: expected use_sliding_window"},
      {"gemma2",
       {{"layer_types", {"full_attention", "sliding_attention", "full_attention"}}, {"sliding_window", nullptr}},
       "layer 1 has sliding_attention, and there is no window"},
      {"phi3", {{"partial_rotary_factor", 0.4}}, "partial_rotary_factor: turns 3"},
      {"qwen2", {{"layer_types", {"full_attention"}}}, "expected 3 entries"},
      {"qwen2", {{"layer_types", {"full_attention", "chunked_attention", "full_attention"}}}, "chunked_attention"},
      {"gemma2", {{"use_bidirectional_attention", true}}, "causal"},
      {"gemma2", {{"hidden_activation", "relu"}}, "gelu_pytorch_tanh"},
      {"gemma3_text", {{"sliding_window", nullptr}}, "sliding_window"},
      {"gemma3_text",
       {{"rope_parameters", {{"sliding_attention", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}}},
       "depends on the length"},
      {"gemma3_text",
       {{"rope_theta", 1e6}, {"rope_parameters", {{"full_attention", {{"rope_theta", 1e5}}}}}},
       "disagree"},
      {"phi3",
       {{"rope_scaling", {{"type", "longrope"}, {"short_factor", {1.0}}, {"long_factor", {1.0}}}}},
       "expected 4 numbers"},
      {"smollm3", {{"no_rope_layers", {1}}}, "no_rope_layers"},
      {"mixtral", {{"num_local_experts", 4}, {"num_experts_per_tok", 5}}, "num_experts_per_tok"},
      {"mixtral", Json::object(), "num_experts"},
      {"llama", {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}}}, "factor"},
      {"llama", {{"head_dim", 2}, {"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}, "dynamic"},
  };
  for (const auto& [type, extra, expected] : bad)
    EXPECT_NE(message(type, extra).find(expected), std::string::npos) << type << ": " << message(type, extra);
}

TEST(Config, EndOfTextFromBothFiles) {
  const specdec::testing::Scratch scratch;
  write_file_atomic(scratch / "config.json", with("eos_token_id", 2).dump());
  EXPECT_EQ(load_decoder_config(scratch.root()).eos_ids, (std::vector<int32_t>{2}));
  write_file_atomic(scratch / "generation_config.json", R"({"eos_token_id": [2, 9]})");
  EXPECT_EQ(load_decoder_config(scratch.root()).eos_ids, (std::vector<int32_t>{2, 9}));
  write_file_atomic(scratch / "generation_config.json", R"({"eos_token_id": 100})");
  EXPECT_THROW(load_decoder_config(scratch.root()), Error);
}

}  // namespace
}  // namespace specdec::model
