// Makes the metadata of a GGUF file from a Hugging Face config.json. Sources of the keys: ggml's docs/gguf.md and
// llama.cpp's src/llama-arch.cpp.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/gguf/export_family.h"
#include "base/gguf/gguf_writer.h"
#include "base/json.h"

namespace specdec::gguf {

struct ExportShape {
  int64_t vocab = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t rotary = 0;  // values of a head that rotate
  int64_t max_position = 0;
  bool tied = false;  // the output head is the embedding
};

struct ExportedConfig {
  ExportShape shape;
  Metadata metadata;  // the keys that begin with the architecture's name
  // Tensors that follow from the configuration: the divisors of the rotation frequencies, [rotary / 2].
  std::vector<std::pair<std::string, std::vector<float>>> factors;
  std::vector<std::string> warnings;  // where llama.cpp runs another model than config.json describes
};

// Throws Error(kModel) naming `where` and the key if a setting is missing, out of range, or one that llama.cpp does not
// have for this family.
ExportedConfig export_config(const Json& config, const ExportFamily& family, const std::string& where);

}  // namespace specdec::gguf
