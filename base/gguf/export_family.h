// What each model family becomes in a GGUF file, as data. Sources: llama.cpp's src/models/*.cpp, which say which keys
// and tensors a family must have, and transformers 5.23, which says what a config.json leaves out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec::gguf {

enum class ExportNorms {
  kBefore,  // before attention and before the feed-forward part
  kAround,  // before and after both
  kAfter    // after both only
};
enum class ExportWindows {
  kNone,
  kEvery,       // every layer
  kSwitched,    // the upper layers, if use_sliding_window is true
  kAlternating  // all but every `full_every`-th layer
};

struct ExportFamily {
  const char* model_type;       // in config.json
  const char* architecture;     // general.architecture
  bool permutes_heads = false;  // the file's rows of queries and keys are ordered by pairs that rotate together
  bool fused = false;           // qkv_proj and gate_up_proj are one matrix each
  bool qk_norm = false;         // queries and keys have norms
  ExportNorms norms = ExportNorms::kBefore;
  double norm_offset = 0;                                     // added to the norms' weights
  bool qkv_bias = false, out_bias = false, mlp_bias = false;  // biases that llama.cpp reads
  bool heads_fill_hidden = false;   // llama.cpp requires that all heads together are as wide as the hidden state
  bool needs_head = false;          // llama.cpp requires output.weight, also where it is the embedding
  bool may_have_head = true;        // llama.cpp reads output.weight; if false, the head is the embedding
  bool reads_rope_factors = false;  // llama.cpp reads rope_freqs.weight
  bool gemma = false;               // soft caps, an attention scale of its own, GELU
  bool local_rope = false;          // layers with a window have a rope of their own
  bool partial_rotary = false;      // a part of each head may rotate
  bool unrotated_layers = false;    // every fourth layer does not rotate
  ExportWindows windows = ExportWindows::kNone;
  int64_t full_every = 1;
  // What config.json may leave out. 0 for the heads: as many key-value heads as query heads, and hidden_size divided by
  // the heads.
  int64_t kv_heads = 0, head_dim = 0, max_position = 2048, window = 0;
  double theta = 10000, epsilon = 1e-6;
  bool tied = false;
};

// Returns the family of a config.json's model_type. Throws Error(kModel) naming the families if it cannot be exported.
const ExportFamily& export_family(const std::string& model_type, const std::string& where);

}  // namespace specdec::gguf
