// A quantised checkpoint in memory. Tests damage it and then try to load it.
#pragma once

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "engine/forward/forward.h"
#include "tests/base/scratch.h"

namespace specdec::parity {

// A checkpoint that tests may change: its tensors as bytes, and its config.json.
struct Bent {
  struct Stored {
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Stored> tensors;
  Json config;

  explicit Bent(const std::filesystem::path& directory) : config(read_json(directory / "config.json")) {
    const SafetensorsFile file(directory / "model.safetensors");
    for (const auto& [key, entry] : file.tensors()) {
      Stored stored{entry.dtype, entry.shape, std::vector<std::byte>(entry.bytes)};
      file.read(entry, stored.bytes);
      tensors[key] = stored;
    }
  }
  // Gives a tensor another shape. Its bytes are cut, or padded with zeros.
  void reshape(const std::string& name, const std::vector<int64_t>& shape) {
    Stored& stored = tensors.at(name);
    size_t bytes = static_cast<size_t>(dtype_bytes(stored.dtype));
    for (const int64_t size : shape) bytes *= static_cast<size_t>(size);
    stored.shape = shape;
    stored.bytes.resize(bytes);
  }
  void write(const std::filesystem::path& directory) const {
    std::vector<TensorToWrite> out;
    for (const auto& [name, t] : tensors) out.push_back({name, t.dtype, t.shape, t.bytes});
    write_safetensors(directory / "model.safetensors", out);
    write_file_atomic(directory / "config.json", config.dump());
  }
  // Loads the checkpoint and returns the error text, or "loaded".
  std::string error() const {
    const specdec::testing::Scratch scratch;
    write(scratch.root());
    try {
      model::load_decoder(scratch.root(), at::kCPU, at::kHalf);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kModel);
      return e.what();
    }
    return "loaded";
  }
};

// Returns wrong shapes for a tensor of shape `right`: each size (unless 1) once too small, too large and doubled, and
// one shape with an additional dimension.
inline std::vector<std::vector<int64_t>> wrong_shapes(const std::vector<int64_t>& right) {
  std::vector<std::vector<int64_t>> out;
  for (size_t d = 0; d < right.size(); ++d) {
    if (right[d] == 1) continue;
    for (const int64_t size : {right[d] - 1, right[d] + 1, 2 * right[d]}) {
      out.push_back(right);
      out.back()[d] = size;
    }
  }
  out.push_back(right);
  out.back().push_back(2);
  return out;
}

}  // namespace specdec::parity
