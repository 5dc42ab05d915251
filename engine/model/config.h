// The shape of a decoder, read from a Hugging Face config.json. A family is data: flags here and a table of tensor names.
// Of LibTorch only header-only types are used, so that config.cpp links without it (fuzzing).
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace specdec::model {

struct RopeConfig {
  enum class Kind { kDefault, kLlama3 };
  Kind kind = Kind::kDefault;
  double theta = 10000;
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;  // llama3
  int64_t original_max_position = 8192;

  bool operator==(const RopeConfig&) const = default;
};

struct LayerConfig {
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
};

struct DecoderConfig {
  std::string model_type;   // "llama"
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_position = 2048;
  double rms_norm_eps = 1e-5;
  RopeConfig rope;
  bool tie_embeddings = false;
  std::vector<LayerConfig> layers;   // size num_layers
  at::ScalarType dtype = at::ScalarType::Float;  // the checkpoint's own (config dtype/torch_dtype)
  std::vector<int32_t> eos_ids;      // config.json and generation_config.json, united
  int32_t bos_id = -1;
};

// "float32" | "bfloat16" | "float16": the names of config.json. Throws Error(kInternal) for other types.
const char* dtype_name(at::ScalarType dtype);

// Throws Error(kModel) naming file and key for anything missing, out of range, unsupported (unknown model_type) or inconsistent.
DecoderConfig parse_decoder_config(const Json& config, const std::string& where);
DecoderConfig load_decoder_config(const std::filesystem::path& directory);  // + generation_config.json for eos
Json to_json(const DecoderConfig& config);  // a config.json that transformers, vLLM and SGLang load

}  // namespace specdec::model
