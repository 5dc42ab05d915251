// A strict reader of GGUF files (which are hostile input), llama.cpp's format for models: one file, or the files of a
// split model. Torch-free. Sources of the format: ggml's docs/gguf.md and gguf.cpp. Versions 2 and 3, little-endian.
// Layout: the magic "GGUF", u32 version, u64 number of tensors, u64 number of metadata values, the metadata, a list of
// tensors (name, dimensions, type, offset), padding to general.alignment, and the tensors' data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/file.h"

namespace specdec::gguf {

// A metadata value. Integers of every width become int64_t or uint64_t, floats become double. An array has one of the
// vector types; arrays of arrays are refused.
using Value = std::variant<bool, int64_t, uint64_t, double, std::string, std::vector<bool>, std::vector<int64_t>,
                           std::vector<uint64_t>, std::vector<double>, std::vector<std::string>>;

// A way in which tensors are stored.
struct TensorType {
  const char* name;      // "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"
  uint32_t id;           // ggml's number of the type
  int64_t block_values;  // number of adjacent values of a row that are stored together
  int64_t block_bytes;   // their size
};
// Returns the description of ggml's type `id` or of the type with this name; null if specdec does not read it.
const TensorType* find_type(uint32_t id);
const TensorType* find_type(std::string_view name);

struct Tensor {
  const TensorType* type;
  std::vector<int64_t> shape;  // outermost dimension first, so [rows, columns]; GGUF stores the reverse
  size_t file = 0;             // index of the split file
  uint64_t offset = 0;         // absolute byte offset in this file
  uint64_t bytes = 0;
};

class GgufFile {
 public:
  // Opens a file, or all files of a split model if `path` is its first part (NAME-00001-of-00003.gguf; split.no,
  // split.count and split.tensors.count in the metadata must agree). Throws Error(kModel) that names the file and says
  // what was found for another magic or version, big-endian files, a truncated file, a type that specdec does not read
  // (by its name, such as "IQ2_XXS"), a row that is not a whole number of blocks, a tensor beyond the end of the file,
  // overlapping tensors, holes (only the padding to the next multiple of the alignment may lie behind a tensor), a
  // general.alignment that is no power of two from 8 to 2^20, an array of arrays, a bool other than 0 and 1, empty and
  // duplicate names, control characters in names, and everything over these limits: 2^20 tensors, 64 Ki metadata values
  // per file, 2^22 elements of an array, 2^24 elements of all arrays, 64 MiB per string, names of 1 KiB, 4 dimensions,
  // 512 MiB of headers, 1000 split files. No allocation is larger than what the file's own size allows: an array takes
  // at most 8 times its bytes in the file.
  explicit GgufFile(const std::filesystem::path& path);

  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const Tensor& tensor(const std::string& name) const;  // throws Error(kModel) if absent
  const InputFile& file_of(const Tensor& tensor) const { return *files_[tensor.file]; }
  const std::vector<std::unique_ptr<InputFile>>& files() const { return files_; }
  // Reads bytes [first, first + out.size()) of a tensor's data. Thread-safe.
  void read(const Tensor& tensor, uint64_t first, std::span<std::byte> out) const;

  // The metadata of the first file.
  const std::map<std::string, Value>& metadata() const { return metadata_; }
  bool has(const std::string& key) const { return metadata_.count(key) != 0; }
  // Typed access. Throws Error(kModel) naming the file and the key if the value is missing (without a default), has
  // another type or is outside of [least, most].
  int64_t integer(const std::string& key, int64_t least, int64_t most, std::optional<int64_t> absent = {}) const;
  double number(const std::string& key, double least, double most, std::optional<double> absent = {}) const;
  bool flag(const std::string& key, bool absent) const;
  std::string text(const std::string& key, std::optional<std::string> absent = {}) const;
  const std::vector<std::string>& texts(const std::string& key) const;  // an array of strings
  std::vector<int64_t> integers(const std::string& key) const;          // an array of integers; {} if absent
  std::vector<double> numbers(const std::string& key) const;            // an array of floats; {} if absent

  // The SHA-256 of everything before the tensors' data, in all files: 64 hex digits.
  const std::string& header_digest() const { return header_digest_; }

 private:
  std::vector<std::unique_ptr<InputFile>> files_;
  std::map<std::string, Value> metadata_;
  std::map<std::string, Tensor> tensors_;
  std::string header_digest_;
};

}  // namespace specdec::gguf
