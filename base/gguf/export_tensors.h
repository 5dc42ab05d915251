// Names the tensors of a GGUF file and the parameters of a Hugging Face checkpoint that they hold. Source of the names:
// llama.cpp's src/llama-arch.cpp.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/gguf/export_config.h"

namespace specdec::gguf {

struct ExportedTensor {
  std::string name;    // in the GGUF file
  std::string source;  // the parameter's name in the checkpoint; "" if `values` are the tensor
  // The inverse of Place::permuted_heads (model_files.h): file row h·D + 2·i + s holds the parameter's row
  // h·D + s·D/2 + i. 0: the rows keep their order.
  int64_t permuted_heads = 0;
  double plus = 0;                 // added to every value
  std::vector<float> values = {};  // a tensor of one dimension
};

// Returns the file's tensors in the order in which they are written. `present` are the names in the checkpoint. Throws
// Error(kModel) naming `where` and the parameter if one is missing, or if llama.cpp has no place for one.
std::vector<ExportedTensor> exported_tensors(const ExportFamily& family, const ExportedConfig& config,
                                             const std::set<std::string>& present, const std::string& where);

}  // namespace specdec::gguf
