// Configurations of small decoders for tests.
#pragma once

#include <string>

#include "engine/config/config.h"

namespace specdec::model {

// Returns the configuration of a small Llama. For another `kind`, returns a configuration that combines as many
// features of other families as possible.
inline DecoderConfig config_like(const std::string& kind) {
  DecoderConfig c;
  c.model_type = "llama";
  c.vocab_size = 90, c.hidden_size = 192, c.intermediate_size = 500, c.num_layers = 3, c.num_heads = 6,
  c.num_kv_heads = 3, c.head_dim = 40;
  c.layers.resize(3);
  if (kind != "llama") c.hidden_size = 72, c.intermediate_size = 130, c.head_dim = 20;
  if (kind == "gemma") {
    c.norm_offset = 1, c.norm_rounds_last = true, c.activation = Activation::kGeluTanh;
    c.embedding_scale = 1.7, c.attention_scalar = 20, c.attention_soft_cap = 3, c.final_soft_cap = 5;
    c.local_rope.theta = 100;
    for (LayerConfig& layer : c.layers)
      layer.attention_out_norm = layer.mlp_out_norm = true, layer.qk_norm = QkNorm::kHead;
    for (const size_t l : {size_t{0}, size_t{2}}) c.layers[l].window = 9, c.layers[l].rope = LayerRope::kLocal;
  } else if (kind == "olmo") {
    c.norm_rounds_last = true, c.rope.rotary_fraction = 0.5;
    for (LayerConfig& layer : c.layers) {
      layer.input_norm = layer.mlp_norm = false, layer.attention_out_norm = layer.mlp_out_norm = true;
      layer.qk_norm = QkNorm::kProjection, layer.qkv_bias = true;
    }
    c.layers[1].rope = LayerRope::kNone;
  } else if (kind == "experts") {
    c.model_type = "qwen3_moe";
    c.num_experts = 11, c.experts_per_token = 3, c.expert_intermediate_size = 70;
    c.layers[0].experts = c.layers[2].experts = true, c.layers[2].window = 4;
  }
  return c;
}

}  // namespace specdec::model
