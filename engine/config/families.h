// Describes the differences between model families as data, in a table with one row per family. config.cpp,
// rope_config.cpp and parameters.cpp read the table.
#pragma once

#include <string>

#include "engine/config/config.h"

namespace specdec::model {

enum class Biases {
  kNever,
  kFlag,  // q, k, v and o have biases if config.json sets attention_bias to true
  kQkv    // q, k and v always have biases, o never; attention_bias is not read
};
enum class Norms { kBefore, kAfter, kAround };  // where attention and the feed-forward part are normalised
// Which layers have a sliding window.
enum class Windows {
  kNone,
  kAll,       // every layer, unless sliding_window is null
  kSwitched,  // every layer if use_sliding_window is true, else no layer
  // For the three kinds below, layer_types in config.json, if present, names the layers that have a window. The rules
  // here apply if layer_types is absent.
  kUpper,       // the layers from max_window_layers on if use_sliding_window is true, else no layer
  kUnrotated,   // the layers without rotation if use_sliding_window is true, else no layer
  kAlternating  // all layers but every n-th
};
struct ExpertNames {  // tensors model.layers.<l>.<router> and model.layers.<l>.<experts>.<k>.<gate | up | down>
  const char *router = nullptr, *experts = nullptr, *gate = nullptr, *up = nullptr, *down = nullptr;
  // The config.json key of the experts' width. If null, the width is intermediate_size, and every layer has experts.
  const char* width = nullptr;
};

// Describes one family: its properties, and transformers' defaults for the keys that config.json may leave out.
struct Family {
  const char *model_type, *architecture;
  double theta = 10000, rms_norm_eps = 1e-6;
  int64_t head_dim = 0;      // 0: hidden_size / num_attention_heads
  int64_t num_kv_heads = 0;  // 0: num_attention_heads
  int64_t max_position = 2048;
  bool tied = false, pads = false;  // pads: the family has a default pad_token_id
  const char* activation_key = "hidden_act";
  Activation activation = Activation::kSilu;
  Biases biases = Biases::kNever;
  bool mlp_bias = false;  // config.json may have mlp_bias
  Norms norms = Norms::kBefore;
  double norm_offset = 0;
  bool norm_rounds_last = false;
  QkNorm qk_norm = QkNorm::kNone;
  Windows windows = Windows::kNone;
  int64_t sliding_window = 0;     // 0: no window
  int64_t full_every = 0;         // kAlternating: the default of sliding_window_pattern
  bool local_rope = false;        // layers with a window use rope_local_base_freq as theta
  bool unrotated_layers = false;  // config.json may have no_rope_layers
  bool partial_rotary = false;    // config.json may have a partial_rotary_factor below 1
  // Embeddings are scaled by sqrt(hidden_size), and config.json has query_pre_attn_scalar and soft caps.
  bool gemma = false;
  double attention_soft_cap = 0, final_soft_cap = 0;
  bool fused = false;                 // checkpoints store qkv_proj and gate_up_proj
  int64_t original_max_position = 0;  // default of original_max_position_embeddings; 0: max_position_embeddings
  ExpertNames experts = {};
};

// Returns the row of this model_type. If there is none, throws Error(kModel) that lists the supported families.
const Family& find_family(const std::string& model_type, const std::string& where);

// Parses and writes the rope settings of config.json in both forms: rope_theta with rope_scaling, and rope_parameters.
// Implemented in rope_config.cpp.
void parse_rope(const Json& config, const Family& family, const std::string& where, DecoderConfig& out);
void write_rope(const DecoderConfig& config, const Family& family, Json& out);

// Parses quantization_config of config.json. Implemented in quantisation_config.cpp.
Quantisation parse_quantisation(const Json& config, const std::string& where);

// Parses and writes the token ids of a reduced lm_head, as text such as "0-255,300,302-310" (ascending), under
// specdec's own key specdec_draft_vocab. parse_draft_vocab() returns an empty list if the key is absent. Implemented in
// draft_vocab_config.cpp.
std::vector<int32_t> parse_draft_vocab(const Json& config, int64_t vocab_size, const std::string& where);
void write_draft_vocab(const std::vector<int32_t>& draft_vocab, Json& out);

}  // namespace specdec::model
