// Writes a safetensors file whose values come piece by piece, so that they need not be in memory together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace specdec {

struct TensorShape {
  std::string name, dtype;
  std::vector<int64_t> shape;
};

// Pads the header with spaces to a multiple of 8 bytes.
class SafetensorsWriter {
 public:
  // Throws Error(kInternal) for an unknown dtype, an empty name, or a name that occurs twice.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorShape> tensors,
                    std::map<std::string, std::string> metadata = {{"format", "pt"}});
  // Returns the tensors in the order in which their values must be written: wide types first, then by name.
  const std::vector<TensorShape>& order() const { return order_; }
  void write(std::span<const std::byte> values);  // appends the next bytes of the values
  void finish();  // fsyncs the file; throws Error(kInternal) unless all values have been written

 private:
  std::filesystem::path path_;
  std::vector<TensorShape> order_;
  uint64_t left_ = 0;
  std::unique_ptr<OutputFile> file_;
};

}  // namespace specdec
