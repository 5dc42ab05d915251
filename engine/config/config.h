// The configuration of a decoder, read from a Hugging Face config.json. A model family is described by data: a row in
// families.cpp and the flags here. Only header-only types of LibTorch are used, so that the parser can be fuzzed
// without linking LibTorch.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"

namespace specdec::model {

// Describes the rotary embedding of queries and keys; rope.h names the sources of the formulas.
struct RopeConfig {
  enum class Kind { kDefault, kLinear, kDynamic, kYarn, kLongRope, kLlama3 };
  Kind kind = Kind::kDefault;
  double theta = 10000;
  double factor = 1;  // scaling factor of every kind except kDefault
  // llama3: the frequencies between these limits, in rotations per context, are blended.
  double low_freq_factor = 1, high_freq_factor = 4;
  // Context length before scaling: original_max_position_embeddings for llama3, yarn and longrope,
  // max_position_embeddings for dynamic.
  int64_t original_max_position = 8192;
  // partial_rotary_factor: the fraction of a head's values, counted from the first, that are rotated.
  double rotary_fraction = 1;
  double attention_factor = 1;  // yarn, longrope: factor of cos and sin
  // yarn: the frequencies between these limits, in rotations per context, are blended.
  double beta_fast = 32, beta_slow = 1;
  bool truncate = true;                           // yarn: widens the blended range to whole pairs
  std::vector<double> short_factor, long_factor;  // longrope: divisors of the frequencies, one per rotated pair

  bool operator==(const RopeConfig&) const = default;
};

// Describes how a checkpoint stores quantised matrices (formats: quantised_reader.h). Loading dequantises the matrices,
// except where weights.h keeps them quantised (kAsStored).
struct Quantisation {
  enum class Method { kNone, kFp8, kGptq, kAwq, kGguf };  // kGguf: gguf_parameters.cpp
  Method method = Method::kNone;
  int64_t bits = 4;        // gptq: 4 or 8; awq: 4
  int64_t group_size = 0;  // number of inputs that share a scale; 0: all inputs
  // Whether the scales of every matrix must fit group_size. False if config.json has no group_size, or sets another
  // group size for some matrices. If the scales of a matrix then do not fit, its inputs are divided into equal groups,
  // one per row of scales.
  bool group_size_binds = true;
  int64_t zero_offset = 0;                        // gptq: added to a stored zero point
  int64_t block_rows = 128, block_columns = 128;  // fp8: size of a block of weights that share a scale
  int64_t file_bytes = 0;                         // gguf: the bytes of all tensors in the file
  bool blocks_bind = false;                       // true if config.json says that all matrices have one scale per block
};

enum class Activation { kSilu, kGeluTanh };
// The norm of queries and keys before rotation: none, one norm per head, or one norm over all heads.
enum class QkNorm { kNone, kHead, kProjection };
enum class LayerRope { kNone, kGlobal, kLocal };

struct LayerConfig {
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool input_norm = true, mlp_norm = true;                // before attention, before the feed-forward part
  bool attention_out_norm = false, mlp_out_norm = false;  // after attention, after the feed-forward part
  QkNorm qk_norm = QkNorm::kNone;
  LayerRope rope = LayerRope::kGlobal;
  // A query sees only the last `window` keys, its own included; 0: all keys.
  int64_t window = 0;
  bool experts = false;  // true: mixture of experts; false: a dense feed-forward part
};

struct DecoderConfig {
  std::string model_type;  // "llama" or another row of families.cpp
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0, num_layers = 0;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t max_position = 2048;
  double rms_norm_eps = 1e-5;
  double norm_offset = 0;  // norms multiply by offset + weight
  // In bf16 and fp16, norms round after the multiplication by the weight instead of before it.
  bool norm_rounds_last = false;
  RopeConfig rope, local_rope;
  Activation activation = Activation::kSilu;
  double embedding_scale = 1;  // factor of embeddings, rounded to the dtype
  // Attention scores are divided by the square root of this value; 0 means head_dim.
  double attention_scalar = 0;
  // Soft caps of attention scores and of logits: x becomes cap · tanh(x / cap). 0: no cap.
  double attention_soft_cap = 0, final_soft_cap = 0;
  int64_t num_experts = 0, experts_per_token = 0, expert_intermediate_size = 0;
  bool normalise_experts = true;  // the weights of the chosen experts sum to 1
  bool tie_embeddings = false;
  // Token ids that lm_head scores, ascending; all other ids get −inf (draft_vocab.h). Empty: lm_head scores all ids.
  std::vector<int32_t> draft_vocab;
  std::vector<LayerConfig> layers;  // size num_layers
  Quantisation quantisation;        // the checkpoint's; kNone in a loaded decoder, except with kAsStored (weights.h)
  at::ScalarType dtype = at::ScalarType::Float;  // the checkpoint's; in a loaded decoder, that of embeddings and norms
  std::vector<int32_t> eos_ids;                  // union of config.json and generation_config.json
  int32_t bos_id = -1, pad_id = -1;              // -1: none

  double attention_scale() const;  // factor of attention scores
};

// Returns "float32", "bfloat16" or "float16", the names in config.json. Throws Error(kInternal) for other types.
const char* dtype_name(at::ScalarType dtype);

// Parses a config.json; `where` names the file in messages. Throws Error(kModel) that names file and key if anything is
// missing, out of range, unsupported (such as an unknown model_type) or inconsistent.
DecoderConfig parse_decoder_config(const Json& config, const std::string& where);
// Reads config.json, and the EOS ids of generation_config.json if that file exists.
DecoderConfig load_decoder_config(const std::filesystem::path& directory);
// Adds an id to the ids that end an answer. Returns false if the list has the id already, or the vocabulary does not.
bool add_eos_id(DecoderConfig& config, int32_t id);
// Returns a config.json that transformers, vLLM and SGLang can load. Settings that differ between layers are written
// per layer (layer_types, …), so that they stay correct when layers are removed.
Json to_json(const DecoderConfig& config);

}  // namespace specdec::model
