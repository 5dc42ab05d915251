// Writes a GGUF file (version 3, little-endian) whose tensors come piece by piece, so that they need not be in memory
// together. gguf_file.h has the layout and its sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/file.h"
#include "base/gguf/gguf_file.h"

namespace specdec::gguf {

// A metadata value with the width with which it is stored: readers such as llama.cpp compare the type of a key, too.
using StoredValue =
    std::variant<bool, uint32_t, int32_t, uint64_t, float, std::string, std::vector<bool>, std::vector<uint32_t>,
                 std::vector<int32_t>, std::vector<float>, std::vector<std::string>>;
// Keys and values in the order in which they are written.
using Metadata = std::vector<std::pair<std::string, StoredValue>>;

struct TensorToStore {
  std::string name;
  const TensorType* type;
  std::vector<int64_t> shape;  // outermost dimension first; every row is a whole number of blocks
  // Returns the size of the tensor's data.
  uint64_t bytes() const;
};

class GgufWriter {
 public:
  // Writes everything before the tensors' data. Throws Error(kInternal) for a key or a name that is empty or occurs
  // twice, more than 4 dimensions, a dimension below 1, and a row that is not a whole number of blocks; Error(kIo).
  GgufWriter(const std::filesystem::path& path, const Metadata& metadata, std::vector<TensorToStore> tensors);
  // Appends the next bytes of the tensors' data, in the order of the list. One call may not go beyond the end of a
  // tensor: the padding between two tensors is written here.
  void write(std::span<const std::byte> bytes);
  void finish();  // fsyncs the file; throws Error(kInternal) unless all bytes have been written

 private:
  void pad();
  std::filesystem::path path_;
  std::vector<TensorToStore> tensors_;
  size_t current_ = 0;   // the tensor that is being written
  uint64_t within_ = 0;  // bytes of it that have been written
  std::unique_ptr<OutputFile> file_;
};

}  // namespace specdec::gguf
