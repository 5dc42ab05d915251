#include "engine/model/config.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/base/scratch.h"

namespace specdec::model {
namespace {

Json minimal() {
  return {{"model_type", "llama"},        {"vocab_size", 100},          {"hidden_size", 64},
          {"intermediate_size", 128},     {"num_hidden_layers", 3},     {"num_attention_heads", 8}};
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
  const Json scaling = {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 64}};
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
  both["rope_parameters"]["rope_theta"] = 10000.0;  // silently another model for one of the readers
  EXPECT_THROW(parse(both), Error);
  Json renamed = older;
  renamed["rope_scaling"].erase("rope_type");
  renamed["rope_scaling"]["type"] = "llama3";
  EXPECT_EQ(parse(renamed).rope, parse(older).rope);
}

TEST(Config, WrittenFormIsReadBackAndHasNoNulls) {
  Json source = minimal();
  source.update(Json{{"head_dim", 16}, {"num_key_value_heads", 2}, {"attention_bias", true}, {"mlp_bias", true}, {"tie_word_embeddings", true},
                     {"dtype", "bfloat16"}, {"rms_norm_eps", 1e-6}, {"max_position_embeddings", 4096}, {"bos_token_id", 1}, {"eos_token_id", {2, 7}},
                     {"rope_parameters", {{"rope_type", "llama3"}, {"rope_theta", 5e5}, {"factor", 4.0}, {"low_freq_factor", 1.0},
                                          {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 1024}}}});
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
      {with("partial_rotary_factor", 0.4), "partial_rotary_factor"},
      {with("hidden_act", "relu"), "silu"},
      {with("dtype", "float8"), "float8"},
      {with("eos_token_id", 100), "eos_token_id"},
      {with("eos_token_id", {2, -1}), "eos_token_id"},
      {with("bos_token_id", "x"), "bos_token_id"},
      {with("tie_word_embeddings", 1), "tie_word_embeddings"},
  };
  for (const auto& [config, expected] : bad) EXPECT_NE(message(config).find(expected), std::string::npos) << message(config);
  Json disagree = with("dtype", "float32");
  disagree["torch_dtype"] = "bfloat16";
  EXPECT_NE(message(disagree).find("disagree"), std::string::npos);
  EXPECT_NO_THROW(parse(with("auto_map", {{"AutoModelForCausalLM", "evil.Model"}})));  // remote code is never run
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
