// Makes small decoders with random weights.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "base/json.h"
#include "engine/weights/weights.h"

namespace specdec::model {

inline Json toy_config(const std::string& type, int64_t layers) {
  return {{"model_type", type},
          {"vocab_size", 61},
          {"hidden_size", 32},
          {"intermediate_size", 40},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 16},
          {"max_position_embeddings", 400},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false},
          {"torch_dtype", "bfloat16"}};
}

// Returns a decoder whose logits differ by a few units, like those of trained decoders.
inline Decoder toy_decoder(const Json& config, uint64_t seed = 1) {
  Decoder decoder = random_decoder(parse_decoder_config(config, "toy"), seed, at::kCPU, at::kFloat);
  uint64_t number = 0;
  decoder.weights.visit(decoder.config, [&](const std::string& name, at::Tensor& tensor) {
    at::manual_seed(seed * 1000 + ++number);  // so that tensors differ
    if (tensor.dim() == 1) {
      tensor = tensor + 0.2 * at::randn(tensor.sizes());
    } else {
      tensor = tensor * (name == "lm_head.weight" ? 20 : name == "model.embed_tokens.weight" ? 50 : 8);
    }
  });
  return decoder;
}

}  // namespace specdec::model
