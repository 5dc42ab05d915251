#include <algorithm>

#include "base/gguf/model_files.h"
#include "tests/base/gguf/sample_model.h"

namespace specdec::gguf {
namespace {

using testing::SampleModel;

class TensorNames : public ::testing::Test {
 protected:
  // Returns "<name> <permuted heads> <minus>", or "-" for a tensor that is no parameter.
  std::string place(const std::string& architecture, const std::string& tensor) {
    const auto found = place_of(SampleModel(architecture).open(dir_ / "m.gguf"), tensor);
    return found ? found->name + " " + std::to_string(found->permuted_heads) + " " + std::to_string(int(found->minus))
                 : "-";
  }
  void refused(const std::string& architecture, const std::string& tensor) {
    std::string shown = tensor;
    std::replace(shown.begin(), shown.end(), '\n', '?');
    testing::expect_error(ErrorKind::kModel, {"m.gguf: tensor '" + shown + "'", "architecture '" + architecture + "'"},
                          [&] { place(architecture, tensor); });
  }
  testing::Scratch dir_;
};

TEST_F(TensorNames, Llama) {
  const struct {
    const char *stored, *expected;
  } tensors[] = {
      {"token_embd.weight", "model.embed_tokens.weight 0 0"},
      {"output_norm.weight", "model.norm.weight 0 0"},
      {"output.weight", "lm_head.weight 0 0"},
      {"rope_freqs.weight", "-"},
      {"blk.1.attn_norm.weight", "model.layers.1.input_layernorm.weight 0 0"},
      {"blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight 4 0"},
      {"blk.1.attn_q.bias", "model.layers.1.self_attn.q_proj.bias 4 0"},
      {"blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight 2 0"},
      {"blk.1.attn_k.bias", "model.layers.1.self_attn.k_proj.bias 2 0"},
      {"blk.1.attn_v.weight", "model.layers.1.self_attn.v_proj.weight 0 0"},
      {"blk.1.attn_output.weight", "model.layers.1.self_attn.o_proj.weight 0 0"},
      {"blk.1.attn_output.bias", "model.layers.1.self_attn.o_proj.bias 0 0"},
      {"blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight 0 0"},
      {"blk.0.ffn_gate.weight", "model.layers.0.mlp.gate_proj.weight 0 0"},
      {"blk.0.ffn_up.weight", "model.layers.0.mlp.up_proj.weight 0 0"},
      {"blk.0.ffn_down.bias", "model.layers.0.mlp.down_proj.bias 0 0"},
  };
  for (const auto& [stored, expected] : tensors) EXPECT_EQ(place("llama", stored), expected);
  EXPECT_EQ(place("smollm3", "blk.1.attn_k.weight"), "model.layers.1.self_attn.k_proj.weight 2 0");
}

TEST_F(TensorNames, OtherFamilies) {
  EXPECT_EQ(place("qwen2", "blk.0.attn_q.bias"), "model.layers.0.self_attn.q_proj.bias 0 0");
  EXPECT_EQ(place("qwen3", "blk.0.attn_q_norm.weight"), "model.layers.0.self_attn.q_norm.weight 0 0");
  EXPECT_EQ(place("gemma2", "blk.0.ffn_norm.weight"), "model.layers.0.pre_feedforward_layernorm.weight 0 1");
  EXPECT_EQ(place("gemma2", "blk.0.post_attention_norm.weight"), "model.layers.0.post_attention_layernorm.weight 0 1");
  EXPECT_EQ(place("gemma2", "blk.0.post_ffw_norm.weight"), "model.layers.0.post_feedforward_layernorm.weight 0 1");
  EXPECT_EQ(place("gemma3", "blk.0.attn_k_norm.weight"), "model.layers.0.self_attn.k_norm.weight 0 1");
  EXPECT_EQ(place("gemma3", "output_norm.weight"), "model.norm.weight 0 1");
  EXPECT_EQ(place("gemma3", "blk.0.attn_norm.weight"), "model.layers.0.input_layernorm.weight 0 1");
  EXPECT_EQ(place("gemma3", "blk.0.ffn_up.weight"), "model.layers.0.mlp.up_proj.weight 0 0");
  EXPECT_EQ(place("phi3", "blk.0.attn_qkv.weight"), "model.layers.0.self_attn.qkv_proj.weight 0 0");
  EXPECT_EQ(place("phi3", "blk.0.ffn_up.weight"), "model.layers.0.mlp.gate_up_proj.weight 0 0");
  EXPECT_EQ(place("phi3", "rope_factors_long.weight"), "-");
  EXPECT_EQ(place("phi3", "rope_factors_short.weight"), "-");
  EXPECT_EQ(place("olmo2", "blk.0.post_attention_norm.weight"), "model.layers.0.post_attention_layernorm.weight 0 0");
  EXPECT_EQ(place("olmo2", "blk.0.attn_k_norm.weight"), "model.layers.0.self_attn.k_norm.weight 0 0");
}

TEST_F(TensorNames, RefusesTensorsThatTheArchitectureLacks) {
  for (const char* name : {"blk.2.attn_q.weight", "blk.-1.attn_q.weight", "blk.01.attn_q.weight", "blk..attn_q.weight",
                           "blk.0.attn_q", "blk.0.weight", "blk.0.attn_q.scale", "blk.0.attn_norm.bias",
                           "blk.0.attn_q_norm.weight", "blk.0.attn_qkv.weight", "blk.0.ffn_gate_exps.weight",
                           "rope_factors_long.weight", "blk.99999999999999999999.attn_q.weight", "x\n", "blk."})
    refused("llama", name);
  for (const char* name : {"blk.0.attn_output.bias", "blk.0.ffn_up.bias", "rope_freqs.weight"}) refused("qwen2", name);
  for (const char* name : {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"}) refused("olmo2", name);
  for (const char* name : {"blk.0.attn_q.weight", "blk.0.ffn_gate.weight"}) refused("phi3", name);
}

}  // namespace
}  // namespace specdec::gguf
