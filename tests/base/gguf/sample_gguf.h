// Makes the bytes of small GGUF files for tests, also of ones that are not valid.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace specdec::testing {

// Returns the little-endian bytes of a number.
template <class T>
std::string le(T value) {
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}
// Returns a string as GGUF stores it: its length and its bytes.
inline std::string gguf_string(const std::string& text) { return le<uint64_t>(text.size()) + text; }

struct SampleGguf {
  struct Entry {
    std::string name;
    std::vector<uint64_t> dimensions;  // innermost first, as in the file
    uint32_t type = 0;
    std::string data;
    std::optional<uint64_t> offset;  // if absent, behind the tensor before it
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;                                    // of the data; not written to the metadata
  std::optional<uint64_t> num_tensors, num_metadata;          // if they differ from the true numbers
  std::vector<std::pair<std::string, std::string>> metadata;  // names, and types with values
  std::vector<Entry> tensors;

  void add_u32(const std::string& key, uint32_t value) { metadata.emplace_back(key, le<uint32_t>(4) + le(value)); }
  void add_text(const std::string& key, const std::string& text) {
    metadata.emplace_back(key, le<uint32_t>(8) + gguf_string(text));
  }
  void add_texts(const std::string& key, const std::vector<std::string>& texts) {
    std::string value = le<uint32_t>(9) + le<uint32_t>(8) + le<uint64_t>(texts.size());
    for (const std::string& text : texts) value += gguf_string(text);
    metadata.emplace_back(key, value);
  }
  template <class T>
  void add_array(const std::string& key, uint32_t type, const std::vector<T>& values) {
    std::string value = le<uint32_t>(9) + le(type) + le<uint64_t>(values.size());
    for (T v : values) value += le(v);
    metadata.emplace_back(key, value);
  }
  // Adds an F32 tensor whose bytes are `fill`.
  void add_f32(const std::string& name, const std::vector<uint64_t>& dimensions, char fill = 'w') {
    size_t bytes = 4;
    for (uint64_t d : dimensions) bytes *= d;
    tensors.push_back({name, dimensions, 0, std::string(bytes, fill), {}});
  }

  std::string header() const {
    std::string bytes = magic + le(version) + le<uint64_t>(num_tensors.value_or(tensors.size())) +
                        le<uint64_t>(num_metadata.value_or(metadata.size()));
    for (const auto& [key, value] : metadata) bytes += gguf_string(key) + value;
    uint64_t end = 0;
    for (const Entry& t : tensors) {
      const uint64_t offset = t.offset.value_or(padded(end));
      bytes += gguf_string(t.name) + le<uint32_t>(static_cast<uint32_t>(t.dimensions.size()));
      for (uint64_t d : t.dimensions) bytes += le(d);
      bytes += le(t.type) + le(offset);
      end = offset + t.data.size();
    }
    return bytes;
  }
  // Returns the header, and the tensors' data one after the other, each with padding behind it.
  std::string bytes() const {
    std::string bytes = header();
    bytes.resize(padded(bytes.size()), '\0');
    for (const Entry& t : tensors) {
      bytes += t.data;
      bytes.resize(padded(bytes.size()), '\0');
    }
    return bytes;
  }

 private:
  uint64_t padded(uint64_t size) const { return (size + alignment - 1) / alignment * alignment; }
};

}  // namespace specdec::testing
