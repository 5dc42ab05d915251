// The architectures of GGUF files (general.architecture) that specdec runs, as data. Sources: llama.cpp's
// llama-model.cpp and src/models/ (which metadata and tensors an architecture has) and its conversion/ (how tensors
// differ from Hugging Face's).
#pragma once

#include <string>

#include "base/gguf/gguf_file.h"

namespace specdec::gguf {

struct Architecture {
  enum class Norms { kBefore, kAfter, kAround };  // where attention and the feed-forward part are normalised
  const char* name;                               // general.architecture
  const char* model_type;                         // config.json's
  const char* class_name;                         // config.json's "architectures"
  Norms norms = Norms::kBefore;
  bool permuted = false;        // the rows of q and k are stored in the order of rope of adjacent pairs
  bool gemma = false;           // norms are stored as 1 + weight
  bool qk_norms = false;        // norms of queries and keys
  bool attention_bias = false;  // q, k, v and o may have biases
  bool qkv_bias = false;        // q, k and v always have biases
  bool mlp_bias = false;        // the feed-forward part may have biases
  bool fused = false;           // q, k and v are one matrix, and so are gate and up
};

// Returns the file's architecture. Throws Error(kModel) that lists the known ones for another architecture, for
// mixtures of experts and for models that are not decoders.
const Architecture& architecture_of(const GgufFile& file);

// Throws Error(kModel): "PATH: <text>".
[[noreturn]] void refuse_model(const GgufFile& file, const std::string& text);

}  // namespace specdec::gguf
