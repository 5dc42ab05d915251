#include "base/gguf/gguf_writer.h"

#include <bit>
#include <set>

#include "base/error.h"

namespace specdec::gguf {

namespace {

constexpr uint64_t kAlignment = 32;  // what readers assume without general.alignment

// ggml's numbers of the types of metadata values (gguf.h, enum gguf_type).
constexpr uint32_t kStoredUint32 = 4, kStoredInt32 = 5, kStoredFloat32 = 6, kStoredBool = 7, kStoredString = 8,
                   kStoredArray = 9, kStoredUint64 = 10;

class WrittenBytes {
 public:
  void u32(uint32_t value) { little_endian(value, 4); }
  void u64(uint64_t value) { little_endian(value, 8); }
  void text(const std::string& value) {
    u64(value.size());
    bytes_ += value;
  }
  void value(bool v) { bytes_ += static_cast<char>(v); }
  void value(uint32_t v) { u32(v); }
  void value(int32_t v) { u32(static_cast<uint32_t>(v)); }
  void value(uint64_t v) { u64(v); }
  void value(float v) { u32(std::bit_cast<uint32_t>(v)); }
  void value(const std::string& v) { text(v); }
  std::string take() { return std::move(bytes_); }
  size_t size() const { return bytes_.size(); }

 private:
  void little_endian(uint64_t value, int width) {
    for (int i = 0; i < width; ++i) bytes_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  std::string bytes_;
};

constexpr uint32_t type_number(bool) { return kStoredBool; }
constexpr uint32_t type_number(uint32_t) { return kStoredUint32; }
constexpr uint32_t type_number(int32_t) { return kStoredInt32; }
constexpr uint32_t type_number(uint64_t) { return kStoredUint64; }
constexpr uint32_t type_number(float) { return kStoredFloat32; }
uint32_t type_number(const std::string&) { return kStoredString; }

template <class T>
void store_value(WrittenBytes& out, const T& value) {
  out.u32(type_number(value));
  out.value(value);
}
template <class T>
void store_value(WrittenBytes& out, const std::vector<T>& values) {
  out.u32(kStoredArray);
  out.u32(type_number(T()));
  out.u64(values.size());
  for (const auto& value : values) out.value(static_cast<const T&>(value));
}

uint64_t padding_after(uint64_t size) { return (kAlignment - size % kAlignment) % kAlignment; }

[[noreturn]] void refuse_to_write(const fs::path& path, const std::string& what) {
  throw Error(ErrorKind::kInternal, path.string() + ": " + what);
}

void check_stored(const fs::path& path, const TensorToStore& tensor) {
  const std::string name = "tensor '" + tensor.name + "'";
  if (tensor.shape.empty() || tensor.shape.size() > 4) refuse_to_write(path, name + " needs 1 to 4 dimensions");
  for (const int64_t d : tensor.shape)
    if (d < 1) refuse_to_write(path, name + " has an empty dimension");
  if (tensor.shape.back() % tensor.type->block_values != 0)
    refuse_to_write(path, name + " has rows that are not a whole number of blocks of " + tensor.type->name);
}

}  // namespace

uint64_t TensorToStore::bytes() const {
  uint64_t blocks = static_cast<uint64_t>(shape.back() / type->block_values);
  for (size_t i = 0; i + 1 < shape.size(); ++i) blocks *= static_cast<uint64_t>(shape[i]);
  return blocks * static_cast<uint64_t>(type->block_bytes);
}

GgufWriter::GgufWriter(const fs::path& path, const Metadata& metadata, std::vector<TensorToStore> tensors)
    : path_(path), tensors_(std::move(tensors)) {
  WrittenBytes header;
  header.u32(0x46554747);  // "GGUF"
  header.u32(3);
  header.u64(tensors_.size());
  header.u64(metadata.size());
  std::set<std::string> keys, names;
  for (const auto& [key, value] : metadata) {
    if (key.empty() || !keys.insert(key).second) refuse_to_write(path, "key '" + key + "' is empty or occurs twice");
    header.text(key);
    std::visit([&](const auto& v) { store_value(header, v); }, value);
  }
  uint64_t offset = 0;
  for (const TensorToStore& tensor : tensors_) {
    check_stored(path, tensor);
    if (tensor.name.empty() || !names.insert(tensor.name).second)
      refuse_to_write(path, "tensor '" + tensor.name + "' has no name or occurs twice");
    header.text(tensor.name);
    header.u32(static_cast<uint32_t>(tensor.shape.size()));
    for (auto d = tensor.shape.rbegin(); d != tensor.shape.rend(); ++d) header.u64(static_cast<uint64_t>(*d));
    header.u32(tensor.type->id);
    header.u64(offset);
    offset += tensor.bytes() + padding_after(tensor.bytes());
  }
  file_ = std::make_unique<OutputFile>(path);
  const uint64_t gap = padding_after(header.size());
  file_->write(header.take() + std::string(gap, '\0'));
}

void GgufWriter::write(std::span<const std::byte> bytes) {
  if (current_ == tensors_.size() || bytes.size() > tensors_[current_].bytes() - within_)
    refuse_to_write(path_, "more bytes than the tensor has");
  file_->write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  within_ += bytes.size();
  if (within_ == tensors_[current_].bytes()) pad();
}

void GgufWriter::pad() {
  file_->write(std::string(padding_after(within_), '\0'));
  ++current_;
  within_ = 0;
}

void GgufWriter::finish() {
  if (current_ != tensors_.size()) refuse_to_write(path_, "fewer bytes than the tensors have");
  file_->finish();
}

}  // namespace specdec::gguf
