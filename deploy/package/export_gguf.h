// Writes a Hugging Face model directory as one GGUF file, which llama.cpp loads: weights, tokenizer and chat template.
// base/gguf/export_*.h say what becomes of config.json, of the parameters and of the tokenizer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/progress.h"

namespace specdec::deploy {

struct GgufOptions {
  std::filesystem::path model;  // a Hugging Face directory
  std::filesystem::path out;    // the file to write; an existing one is replaced
  // How matrices are stored: f32, f16, bf16, q8_0, q4_0, or auto for the dtype of the checkpoint. Vectors (norms,
  // biases) are always F32. With q8_0 and q4_0, matrices whose rows are no multiple of 32 long keep 16 bits; with q4_0,
  // embedding and head are Q8_0.
  std::string type = "auto";
  std::string name;  // general.name; "" = the model's name
};

struct GgufResult {
  std::string architecture, type;  // type: not auto
  uint64_t tensors = 0, bytes = 0;
  std::vector<std::string> warnings;
};

// Returns the types that --type accepts.
const std::vector<std::string>& known_gguf_types();
void require_known_gguf_type(const std::string& type);  // throws Error(kUsage)

// Writes the file, completely or not at all. Weights are read and converted in pieces of some MiB. Throws Error(kModel)
// for a model that llama.cpp would not run as it is: a family, setting, tensor or tokenizer that it does not have,
// quantised weights, and values that are not finite or too large for the type; Error(kIo); Error(kNetwork), the kind
// that means "try again", if a signal stops it.
GgufResult export_gguf(const GgufOptions& options, const ProgressFn& progress);

}  // namespace specdec::deploy
