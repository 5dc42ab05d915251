// One change of the file system, in the binary form that faults.cpp writes to a journal and power_cut.cpp reads.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace specdec::testing {

enum class ChangeKind : uint8_t {
  kCreate,
  kTruncate,
  kWrite,
  kFlush,
  kRename,
  kExchange,
  kLink,
  kSymlink,
  kRemove,
  kMkdir,
  kRead,
  kSend
};

struct Change {
  ChangeKind kind{};
  bool flushed = false;      // made by a program that is not under test, so it counts as durable at once
  std::string path{}, to{};  // absolute
  // Offset of a write in bytes, new size of a truncation in bytes, or requested mode of a new file.
  int64_t offset = 0;
  std::string data{};  // bytes of a write, or target of a symbolic link
};

struct ChangeHeader {
  ChangeKind kind;
  bool flushed;
  uint32_t path, to;
  int64_t offset;
  uint64_t data;
};

inline std::string encode(const Change& c) {
  ChangeHeader head;
  std::memset(&head, 0, sizeof head);
  head.kind = c.kind;
  head.flushed = c.flushed;
  head.path = static_cast<uint32_t>(c.path.size());
  head.to = static_cast<uint32_t>(c.to.size());
  head.offset = c.offset;
  head.data = c.data.size();
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + c.path + c.to + c.data;
}

// Decodes the change at the beginning of `bytes` into `c` and removes it from `bytes`. Returns false and changes
// nothing if `bytes` does not contain a whole change.
inline bool decode(std::string_view& bytes, Change& c) {
  ChangeHeader head;
  if (bytes.size() < sizeof head) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (bytes.size() - sizeof head < head.path + head.to + head.data) return false;
  bytes.remove_prefix(sizeof head);
  const auto take = [&bytes](size_t n) {
    std::string text(bytes.substr(0, n));
    bytes.remove_prefix(n);
    return text;
  };
  c = {.kind = head.kind,
       .flushed = head.flushed,
       .path = take(head.path),
       .to = take(head.to),
       .offset = head.offset,
       .data = take(head.data)};
  return true;
}

}  // namespace specdec::testing
