// Decoder weights as plain structs. One visit() drives loading, saving, optimisers and gradient checks.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/model/config.h"

namespace specdec::model {

struct LayerWeights {
  at::Tensor input_norm;   // [E]
  at::Tensor q, k, v;      // [H·D, E], [G·D, E], [G·D, E]
  at::Tensor q_bias, k_bias, v_bias, o_bias;  // undefined unless the layer's flag is set
  at::Tensor o;            // [E, H·D]
  at::Tensor post_norm;    // [E]
  at::Tensor gate, up;     // [I, E]
  at::Tensor down;         // [E, I]
  at::Tensor gate_bias, up_bias, down_bias;
};

struct DecoderWeights {
  at::Tensor embed;        // [V, E]
  std::vector<LayerWeights> layers;
  at::Tensor norm;         // [E]
  at::Tensor lm_head;      // [V, E]; the same tensor as embed when tied

  // f(name, tensor&) for each parameter once, in a fixed order, under its Hugging Face name; a tied lm_head is skipped.
  void visit(const DecoderConfig& config, const std::function<void(const std::string& name, at::Tensor&)>& f);
};

struct Decoder {
  DecoderConfig config;
  DecoderWeights weights;
};

// Reads config.json and *.safetensors. Missing, left-over or wrongly shaped tensors are Error(kModel). `dtype`: "auto" keeps
// the checkpoint's. Left-over means: unknown name (rotary inv_freq buffers and a tied lm_head.weight are known and ignored).
Decoder load_decoder(const std::filesystem::path& directory, at::Device device, at::ScalarType dtype);
at::ScalarType resolve_dtype(const std::string& flag, const DecoderConfig& config);  // "auto" | fp32 | bf16 | fp16
at::Device resolve_device(const std::string& flag);  // "auto" | "cpu" | "cuda[:i]"; Error(kDevice) when there is none

// Normal(0, 0.02) for matrices, ones for norms; deterministic for a seed on every machine (Philox).
Decoder random_decoder(const DecoderConfig& config, uint64_t seed, at::Device device, at::ScalarType dtype);

// config.json + model.safetensors into an existing directory (fsynced). Tokenizer files are the caller's.
void save_decoder(const Decoder& decoder, const std::filesystem::path& directory);

}  // namespace specdec::model
