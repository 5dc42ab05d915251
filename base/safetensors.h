// A strict reader of safetensors files (which are hostile input), and a writer for tensors that are in memory
// (base/safetensors_writer.h writes piece by piece). Torch-free; engine/weights/weights makes tensors from the bytes.
// Format: u64 LE header length, JSON header, data without holes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace specdec {

namespace gguf {
class GgufFile;
struct Placed;
}  // namespace gguf

struct TensorEntry {
  std::string dtype;           // "F32", "BF16", "F16", "I64", "I32", "U8", "BOOL", …
  std::vector<int64_t> shape;  // every dimension >= 0, rank <= 8
  uint64_t offset = 0;         // absolute byte offset in the file
  uint64_t bytes = 0;
};

// Returns the bytes per element; 0 for an unknown dtype.
int dtype_bytes(const std::string& dtype);

class SafetensorsFile {
 public:
  // Throws Error(kModel) for pickle or other magic, a truncated file, a header over 100 MB, bad JSON, duplicate names,
  // an unknown dtype, a wrong size, an overlap, a hole, trailing bytes, more than 1e6 tensors, and names over 1 KiB.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::map<std::string, TensorEntry>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const InputFile& file() const { return file_; }
  void read(const TensorEntry& entry, std::span<std::byte> out) const;  // out.size() must be entry.bytes

 private:
  InputFile file_;
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
};

// The tensors of a model directory: model.safetensors, the shards of model.safetensors.index.json, or the GGUF file
// model.gguf or model-00001-of-<n>.gguf (base/gguf/model_files.h), whose tensors get their Hugging Face names; their
// dtype is the type's name, such as "Q4_0". Throws Error(kModel) if no such file exists (the message names a pickle
// file if there is one), if the index names a path with '/' or "..", if a shard or a tensor is missing, if a tensor is
// in two shards, if a tensor is in a shard other than the one that the index names, or if config.json was made from a
// GGUF file with another header.
class SafetensorsDirectory {
 public:
  explicit SafetensorsDirectory(const std::filesystem::path& directory);
  ~SafetensorsDirectory();

  std::vector<std::string> names() const;  // sorted
  bool contains(const std::string& name) const { return where_.count(name) != 0; }
  const TensorEntry& entry(const std::string& name) const;
  void read(const std::string& name, std::span<std::byte> out) const;
  // Returns whether two tensors have the same dtype, shape and bytes.
  bool equal(const std::string& a, const std::string& b) const;
  // Returns the file that holds a tensor.
  const InputFile& file_of(const std::string& name) const;
  // Returns the paths of all files with tensors, and of all parts of a split GGUF model, whose first may have none.
  std::set<std::filesystem::path> files() const;
  // Returns the GGUF file that holds the tensors, or null.
  const gguf::GgufFile* gguf() const { return gguf_.get(); }
  // Returns a tensor of the GGUF file and its place in the decoder. Only if gguf() is not null.
  const gguf::Placed& placed(const std::string& name) const;

 private:
  void open_gguf(const std::filesystem::path& file);
  void open_index(const std::filesystem::path& index);

  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::unique_ptr<gguf::GgufFile> gguf_;
  std::map<std::string, gguf::Placed> placed_;
  std::map<std::string, TensorEntry> entries_;
  std::map<std::string, size_t> where_;
  std::filesystem::path directory_;
};

// Returns whether a directory has a file that SafetensorsDirectory opens.
bool has_weights(const std::filesystem::path& directory);

struct TensorToWrite {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // little-endian, contiguous, shape × dtype_bytes
};

// Writes one file and fsyncs it. Adds `metadata` to the header, and pads the header with spaces to a multiple of 8
// bytes.
void write_safetensors(const std::filesystem::path& path, const std::vector<TensorToWrite>& tensors,
                       std::map<std::string, std::string> metadata = {{"format", "pt"}});

}  // namespace specdec
