// Reads the reference files in golden/, written by make_goldens.py, make_family_goldens.py and
// make_quantised_goldens.py.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <string>

#include "base/safetensors.h"
#include "tests/source_folder.h"

namespace specdec::parity {

inline std::filesystem::path golden_path(const std::string& name) {
  return std::filesystem::path(source_folder()) / "tests" / "parity" / "golden" / name;
}

inline std::map<std::string, at::Tensor> load_golden(const std::string& name) {
  const SafetensorsFile file(golden_path(name));
  std::map<std::string, at::Tensor> out;
  for (const auto& [key, entry] : file.tensors()) {
    at::Tensor tensor = at::empty(entry.shape, entry.dtype == "I64" ? at::kLong : at::kFloat);
    file.read(entry, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    out[key] = tensor;
  }
  return out;
}

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace specdec::parity
