#include <cmath>
#include <numbers>

#include "base/gguf/model_files.h"
#include "tests/base/gguf/sample_model.h"

namespace specdec::gguf {
namespace {

using testing::error_of;
using testing::SampleModel;

class ModelConfig : public ::testing::Test {
 protected:
  Json config(const SampleModel& model) { return make_config(model.open(dir_ / "m.gguf")); }
  void refused(const SampleModel& model, const std::vector<std::string>& parts) {
    testing::expect_error(ErrorKind::kModel, parts, [&] { config(model); });
  }
  testing::Scratch dir_;
};

// A model of this architecture with a vocabulary.
SampleModel model_of(const std::string& architecture, uint32_t layers = 2) {
  SampleModel model(architecture, layers);
  model.few_tokens();
  return model;
}

// Requires that `found` has the entries of `expected`.
void expect_entries(const Json& found, const Json& expected) {
  for (const auto& [key, value] : expected.items())
    EXPECT_EQ(found.contains(key) ? found.at(key) : Json("missing"), value) << key;
}

TEST_F(ModelConfig, LlamaHasTheShapeAndNumbersOfTheFile) {
  SampleModel model = model_of("llama");
  model.real("rope.freq_base", 500000);
  model.id("bos", 3);
  model.id("eos", 4);
  const GgufFile file = model.open(dir_ / "m.gguf");
  expect_entries(make_config(file),
                 {{"architectures", {"LlamaForCausalLM"}},
                  {"model_type", "llama"},
                  {"vocab_size", 5},
                  {"hidden_size", 32},
                  {"intermediate_size", 48},
                  {"num_hidden_layers", 2},
                  {"num_attention_heads", 4},
                  {"num_key_value_heads", 2},
                  {"head_dim", 8},
                  {"max_position_embeddings", 4096},
                  {"rms_norm_eps", 1e-5},  // not 9.99999974737875e-06, the nearest fp32 number
                  {"rope_theta", 500000.0},
                  {"hidden_act", "silu"},
                  {"attention_bias", false},
                  {"mlp_bias", false},
                  {"tie_word_embeddings", true},
                  {"torch_dtype", "float32"},
                  {"bos_token_id", 3},
                  {"eos_token_id", 4},
                  {"pad_token_id", nullptr},
                  {"quantization_config",
                   {{"quant_method", "gguf"}, {"header", file.header_digest()}, {"bytes", 4 * 32 * (5 + 1)}}}});
  EXPECT_FALSE(make_config(file).contains("rope_scaling"));
  EXPECT_EQ(make_generation_config(file), Json({{"bos_token_id", 3}, {"eos_token_id", {4}}}));
}

TEST_F(ModelConfig, TensorsDecideOnHeadBiasesAndDtype) {
  SampleModel model = model_of("llama");
  model.file.add_f32("output.weight", {32, 5});
  model.file.add_f32("blk.0.attn_q.bias", {32});
  model.file.add_f32("blk.0.ffn_down.bias", {32});
  expect_entries(config(model), {{"tie_word_embeddings", false}, {"attention_bias", true}, {"mlp_bias", true}});
  constexpr uint32_t kF16 = 1;
  for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_k.weight"})
    model.file.tensors.push_back({name, {32, 2}, kF16, std::string(128, 'h'), {}});
  EXPECT_EQ(config(model)["torch_dtype"], "bfloat16");  // half of the four matrices
  model.file.tensors.push_back({"blk.0.attn_v.weight", {32, 2}, kF16, std::string(128, 'h'), {}});
  EXPECT_EQ(config(model)["torch_dtype"], "float16");
}

TEST_F(ModelConfig, Qwen) {
  expect_entries(config(model_of("qwen2")), {{"model_type", "qwen2"}, {"use_sliding_window", false}});
  SampleModel model = model_of("qwen3");
  model.number("attention.key_length", 16);
  model.number("attention.value_length", 16);
  expect_entries(config(model), {{"model_type", "qwen3"}, {"head_dim", 16}, {"attention_bias", false}});
}

TEST_F(ModelConfig, GemmaHasWindowsScalarsAndSoftCaps) {
  SampleModel second = model_of("gemma2", 4);
  second.number("attention.sliding_window", 16);
  second.real("final_logit_softcapping", 20);
  const Json sliding = "sliding_attention", full = "full_attention";
  expect_entries(config(second), {{"sliding_window", 16},
                                  {"layer_types", {sliding, full, sliding, full}},
                                  {"query_pre_attn_scalar", 8},
                                  {"attn_logit_softcapping", 50.0},
                                  {"final_logit_softcapping", 20.0},
                                  {"hidden_activation", "gelu_pytorch_tanh"}});
  SampleModel largest = model_of("gemma2", 46);  // 27B
  largest.number("attention.key_length", 16);
  largest.number("attention.value_length", 16);
  EXPECT_EQ(config(largest)["query_pre_attn_scalar"], 8);

  SampleModel third = model_of("gemma3", 6);
  refused(third, {"gemma3.attention.sliding_window is missing"});
  third.number("attention.sliding_window", 16);
  third.real("rope.freq_base", 1e6F);
  third.real("rope.scaling.factor", 8);
  third.text("gemma3.rope.scaling.type", "linear");
  expect_entries(config(third), {{"model_type", "gemma3_text"},
                                 {"layer_types", {sliding, sliding, sliding, sliding, sliding, full}},
                                 {"rope_theta", 1e6},
                                 {"rope_local_base_freq", 10000.0},
                                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
                                 {"attn_logit_softcapping", nullptr},
                                 {"final_logit_softcapping", nullptr}});
  const std::string key = "gemma3.attention.sliding_window_pattern";
  third.file.add_array<uint8_t>(key, 7, {1, 0, 0, 1, 0, 0});
  EXPECT_EQ(config(third)["layer_types"], Json({sliding, full, full, sliding, full, full}));
  third.remove(key);
  third.file.add_array<uint8_t>(key, 7, {1, 0});
  refused(third, {key, "6 layers, found 2"});
}

TEST_F(ModelConfig, Phi3HasFactorsAndPartialRotation) {
  SampleModel model = model_of("phi3");
  model.number("attention.sliding_window", 0);
  model.number("rope.dimension_count", 6);
  model.number("rope.scaling.original_context_length", 2048);
  expect_entries(
      config(model),
      {{"sliding_window", nullptr}, {"partial_rotary_factor", 0.75}, {"original_max_position_embeddings", 2048}});
  EXPECT_FALSE(config(model).contains("rope_scaling"));
  model.real("rope.scaling.attn_factor", 1.25F);
  model.row("rope_factors_long.weight", {1.1F, 2, 4});
  model.row("rope_factors_short.weight", {1, 1, 1.5F});
  EXPECT_EQ(config(model)["rope_scaling"], Json({{"rope_type", "longrope"},
                                                 {"long_factor", {1.1, 2.0, 4.0}},
                                                 {"short_factor", {1.0, 1.0, 1.5}},
                                                 {"attention_factor", 1.25}}));
  model.file.tensors.pop_back();
  model.row("rope_factors_short.weight", {1, 1});
  refused(model, {"rope_factors_short.weight", "expected 3 numbers"});
  SampleModel windowed = model_of("phi3");
  windowed.number("attention.sliding_window", 2047);
  EXPECT_EQ(config(windowed)["sliding_window"], 2047);
}

TEST_F(ModelConfig, SmolLm3AndOlmo2) {
  expect_entries(config(model_of("smollm3", 8)),
                 {{"no_rope_layers", {1, 1, 1, 0, 1, 1, 1, 0}}, {"use_sliding_window", false}});
  SampleModel olmo = model_of("olmo2");
  EXPECT_EQ(config(olmo)["model_type"], "olmo2");
  olmo.number("attention.sliding_window", 4096);
  refused(olmo, {"OLMo 3"});
}

// Returns rope_freqs.weight of Llama 3's scaling, computed in fp32 by transformers' formula.
std::vector<float> llama3_factors(float theta, int pairs, float factor, float original) {
  std::vector<float> out;
  for (int i = 0; i < pairs; ++i) {
    const float frequency = 1 / std::pow(theta, static_cast<float>(i) / static_cast<float>(pairs));
    const float wave = 2 * std::numbers::pi_v<float> / frequency, smooth = (original / wave - 1) / 3;
    out.push_back(wave < original / 4 ? 1 : wave > original ? factor : 1 / ((1 - smooth) / factor + smooth));
  }
  return out;
}

TEST_F(ModelConfig, RecoversLlama3Scaling) {
  const auto with = [](const std::vector<float>& factors) {
    SampleModel model = model_of("llama");
    model.number("attention.key_length", 64);
    model.number("attention.value_length", 64);
    model.real("rope.freq_base", 500000);
    model.row("rope_freqs.weight", factors);
    return model;
  };
  for (const float factor : {8.0F, 32.0F, 4.0F})
    for (const float original : {8192.0F, 4096.0F})
      EXPECT_EQ(config(with(llama3_factors(500000, 32, factor, original)))["rope_scaling"],
                Json({{"rope_type", "llama3"},
                      {"factor", static_cast<double>(factor)},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", static_cast<int64_t>(original)}}));
  EXPECT_FALSE(config(with(std::vector<float>(32, 1))).contains("rope_scaling"));
  std::vector<float> other = llama3_factors(500000, 32, 8, 8192);
  other[20] *= 1.01F;
  refused(with(other), {"rope_freqs.weight", "no setting of Llama 3's rope scaling"});
  refused(with({1, 2}), {"rope_freqs.weight", "expected 32 numbers"});
  refused(with(std::vector<float>(32, NAN)), {"rope_freqs.weight", "[1e-6, 1e6]"});
}

TEST_F(ModelConfig, ScalesRope) {
  SampleModel model = model_of("llama");
  model.text("llama.rope.scaling.type", "yarn");
  model.real("rope.scaling.factor", 4);
  model.number("rope.scaling.original_context_length", 1024);
  model.real("rope.scaling.yarn_beta_fast", 16);
  EXPECT_EQ(config(model)["rope_scaling"], Json({{"rope_type", "yarn"},
                                                 {"factor", 4.0},
                                                 {"original_max_position_embeddings", 1024},
                                                 {"beta_fast", 16.0},
                                                 {"beta_slow", 1.0}}));
  SampleModel other = model;
  other.real("rope.scaling.yarn_log_multiplier", 0.1F);
  refused(other, {"yarn_log_multiplier", "expected 0"});
  model.remove("llama.rope.scaling.type");
  EXPECT_EQ(config(model)["rope_scaling"]["rope_type"], "linear");  // llama.cpp's default
  model.text("llama.rope.scaling.type", "none");
  EXPECT_FALSE(config(model).contains("rope_scaling"));
  model.remove("llama.rope.scaling.type");
  model.text("llama.rope.scaling.type", "spiral\n");
  refused(model, {"rope.scaling.type", "'spiral?' is not supported"});
}

TEST_F(ModelConfig, EndsOfAnAnswer) {
  SampleModel model("llama");
  model.vocabulary("gpt2", {"a", "<|endoftext|>", "<|eot_id|>", "x", "</s>"}, {1, 3, 3, 3, 1});
  model.text("tokenizer.ggml.pre", "llama-bpe");
  model.id("eos", 0);
  model.id("eom", 3);
  model.id("padding", 1);
  EXPECT_EQ(make_generation_config(model.open(dir_ / "m.gguf")),
            Json({{"eos_token_id", {0, 1, 2, 3}}, {"pad_token_id", 1}}));
}

TEST_F(ModelConfig, RefusesWhatItDoesNotKnow) {
  SampleModel unknown = model_of("llama");
  unknown.remove("general.architecture");
  unknown.text("general.architecture", "rwkv7\n");
  refused(unknown, {"m.gguf: general.architecture 'rwkv7?'", "llama, qwen2, qwen3"});
  SampleModel experts = model_of("llama");
  experts.number("expert_count", 8);
  refused(experts, {"a mixture of experts (llama.expert_count)"});
  SampleModel encoder = model_of("llama");
  encoder.flag("llama.attention.causal", false);
  refused(encoder, {"bidirectional attention"});
  SampleModel values = model_of("llama");
  values.number("attention.value_length", 4);
  refused(values, {"attention.value_length", "8, found 4"});
  SampleModel part = model_of("llama");
  part.number("rope.dimension_count", 4);
  refused(part, {"rope.dimension_count", "8, found 4"});
  SampleModel none = model_of("llama");
  none.remove("llama.block_count");
  refused(none, {"llama.block_count"});
  SampleModel rows = model_of("llama");
  rows.file.tensors.pop_back();
  rows.file.add_f32("token_embd.weight", {32, 6});
  refused(rows, {"6 rows of token_embd.weight, found 5"});
  SampleModel range = model_of("llama");
  range.id("bos", 5);
  refused(range, {"tokenizer.ggml.bos_token_id"});
}

}  // namespace
}  // namespace specdec::gguf
