// The shape of a decoder, read from a Hugging Face config.json. A family is data: a row in families.cpp, flags here.
// Of LibTorch only header-only types are used, so that parsing links without it (fuzzing).
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace specdec::model {

// How positions turn queries and keys; the formulas are in rope.h.
struct RopeConfig {
  enum class Kind { kDefault, kLinear, kDynamic, kYarn, kLongRope, kLlama3 };
  Kind kind = Kind::kDefault;
  double theta = 10000;
  double factor = 1;                                 // of every scaling
  double low_freq_factor = 1, high_freq_factor = 4;  // llama3
  // tokens the scaling starts from: llama3, yarn, longrope; of dynamic max_position_embeddings
  int64_t original_max_position = 8192;
  double rotary_fraction = 1;                     // partial_rotary_factor: the first part of a head that is turned
  double attention_factor = 1;                    // yarn, longrope: cos and sin are multiplied by it
  double beta_fast = 32, beta_slow = 1;           // yarn
  bool truncate = true;                           // yarn
  std::vector<double> short_factor, long_factor;  // longrope, one for each turned pair

  bool operator==(const RopeConfig&) const = default;
};

// How a checkpoint's matrices are stored (quantised.h); they are dequantised when they are loaded.
struct Quantisation {
  enum class Method { kNone, kFp8, kGptq, kAwq };
  Method method = Method::kNone;
  int64_t bits = 4;                               // gptq: 4 or 8; awq: 4
  int64_t group_size = 0;                         // inputs that share a scale; 0: all
  int64_t zero_offset = 0;                        // gptq: what is added to a stored zero point
  int64_t block_rows = 128, block_columns = 128;  // fp8 with a scale for each block
};

enum class Activation { kSilu, kGeluTanh };
enum class QkNorm {
  kNone,
  kHead,
  // of queries and keys before they are turned: each head, or all heads as one row
  kProjection
};
enum class LayerRope { kNone, kGlobal, kLocal };

struct LayerConfig {
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool input_norm = true, mlp_norm = true;                // before attention, before the feed-forward part
  bool attention_out_norm = false, mlp_out_norm = false;  // of what they give, before it joins the residual stream
  QkNorm qk_norm = QkNorm::kNone;
  LayerRope rope = LayerRope::kGlobal;
  int64_t window = 0;    // a query sees the last `window` of its keys, its own included; 0: all
  bool experts = false;  // a mixture of experts instead of one feed-forward part
};

struct DecoderConfig {
  std::string model_type;  // "llama", … (families.cpp)
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_position = 2048;
  double rms_norm_eps = 1e-5;
  double norm_offset = 0;         // norms multiply by offset + weight
  bool norm_rounds_last = false;  // bf16, fp16: rounded after the multiplication, not before it
  RopeConfig rope, local_rope;
  Activation activation = Activation::kSilu;
  double embedding_scale = 1;                         // embeddings are multiplied by it, rounded to the dtype
  double attention_scalar = 0;                        // scores are divided by its square root; 0: head_dim
  double attention_soft_cap = 0, final_soft_cap = 0;  // x -> cap · tanh(x / cap) of scores and of logits; 0: none
  int64_t num_experts = 0, experts_per_token = 0, expert_intermediate_size = 0;
  bool normalise_experts = true;  // the weights of the chosen experts sum to 1
  bool tie_embeddings = false;
  // ids that the head scores, rising; empty: all. The others get -inf (draft_vocab.h)
  std::vector<int32_t> draft_vocab;
  std::vector<LayerConfig> layers;               // size num_layers
  Quantisation quantisation;                     // of the checkpoint; a loaded decoder has none
  at::ScalarType dtype = at::ScalarType::Float;  // the checkpoint's own (config dtype/torch_dtype)
  std::vector<int32_t> eos_ids;                  // config.json and generation_config.json, united
  int32_t bos_id = -1, pad_id = -1;              // -1: none

  double attention_scale() const;  // what scores are multiplied by
};

// "float32" | "bfloat16" | "float16": the names of config.json. Throws Error(kInternal) for other types.
const char* dtype_name(at::ScalarType dtype);

// Throws Error(kModel) naming file and key for anything missing, out of range, unsupported (unknown model_type) or
// inconsistent.
DecoderConfig parse_decoder_config(const Json& config, const std::string& where);
DecoderConfig load_decoder_config(const std::filesystem::path& directory);  // + generation_config.json for eos
// A config.json that transformers, vLLM and SGLang load. What differs by layer is written layer by layer (layer_types,
// …), so that a model keeps its meaning when layers are taken out of it.
Json to_json(const DecoderConfig& config);

}  // namespace specdec::model
