#include "base/safetensors_writer.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/safetensors.h"

namespace specdec {

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorShape> tensors,
                                     std::map<std::string, std::string> metadata)
    : path_(path), order_(std::move(tensors)) {
  // Writes wide types first, which keeps every tensor aligned to its element size, as the reference writer does.
  std::sort(order_.begin(), order_.end(), [](const TensorShape& a, const TensorShape& b) {
    const int wide_a = dtype_bytes(a.dtype), wide_b = dtype_bytes(b.dtype);
    return wide_a != wide_b ? wide_a > wide_b : a.name < b.name;
  });
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const TensorShape& t : order_) {
    uint64_t bytes = static_cast<uint64_t>(dtype_bytes(t.dtype));
    if (bytes == 0 || t.name.empty() || header.contains(t.name))
      throw Error(ErrorKind::kInternal, path.string() + ": tensor '" + t.name + "' cannot be written (dtype or name)");
    for (const int64_t d : t.shape) bytes *= static_cast<uint64_t>(d);
    header[t.name] = {{"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {left_, left_ + bytes}}};
    left_ += bytes;
  }
  std::string text = canonical_json(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  file_ = std::make_unique<OutputFile>(path);
  file_->write(length);
  file_->write(text);
}

void SafetensorsWriter::write(std::span<const std::byte> values) {
  if (values.size() > left_) throw Error(ErrorKind::kInternal, path_.string() + ": more values than the header names");
  left_ -= values.size();
  file_->write(std::string_view(reinterpret_cast<const char*>(values.data()), values.size()));
}

void SafetensorsWriter::finish() {
  if (left_ != 0) throw Error(ErrorKind::kInternal, path_.string() + ": fewer values than the header names");
  file_->finish();
}

}  // namespace specdec
