#include "distill/metrics/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace specdec::distill {

namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1) ? (c >> 1) ^ 0x82F63B78u : c >> 1;
    table[i] = c;
  }
  return table;
}

template <class T>
void put_le(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xFF));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>((value & 0x7F) | 0x80));
  out.push_back(static_cast<char>(value));
}

// Appends a protobuf key: field number and wire type (0 varint, 1 eight bytes, 2 length-delimited, 5 four bytes).
void put_key(std::string& out, int field, int wire) { put_varint(out, static_cast<uint64_t>(field << 3 | wire)); }
void put_bytes(std::string& out, int field, std::string_view bytes) {
  put_key(out, field, 2);
  put_varint(out, bytes.size());
  out.append(bytes);
}

std::string event(double wall_time, int64_t step) {
  std::string out;
  put_key(out, 1, 1);
  put_le(out, std::bit_cast<uint64_t>(wall_time));
  put_key(out, 2, 0);
  put_varint(out, static_cast<uint64_t>(step));
  return out;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_table();
  uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<uint8_t>(c)) & 0xFF] ^ (crc >> 8);
  return crc ^ 0xFFFFFFFFu;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

std::string tf_record(std::string_view payload) {
  std::string out;
  put_le(out, static_cast<uint64_t>(payload.size()));
  put_le(out, masked_crc32c(std::string_view(out).substr(0, 8)));
  out.append(payload);
  put_le(out, masked_crc32c(payload));
  return out;
}

EventFile::EventFile(const std::filesystem::path& directory, int64_t unix_seconds, int64_t first_step) {
  char host[256] = "localhost";
  if (::gethostname(host, sizeof host - 1) != 0) std::strcpy(host, "localhost");
  const std::string stem =
      "events.out.tfevents." + std::to_string(unix_seconds) + "." + host + "." + std::to_string(::getpid()) + ".";
  for (int n = 0; fd_ < 0; ++n) {
    path_ = directory / (stem + std::to_string(n));
    if (!std::filesystem::exists(std::filesystem::symlink_status(path_)))
      fd_ = open_file(path_, O_WRONLY | O_CREAT | O_EXCL | O_APPEND);
  }
  const auto wall = static_cast<double>(unix_seconds);
  std::string version = event(wall, 0);
  put_bytes(version, 3, "brain.Event:2");
  append(tf_record(version));
  if (first_step > 0) {
    std::string start = event(wall, first_step);  // an Event with field 7, session_log { status = START (1) }
    put_bytes(start, 7, std::string("\x08\x01", 2));
    append(tf_record(start));
  }
}

EventFile::~EventFile() {
  if (fd_ >= 0) ::close(fd_);
}

void EventFile::append(std::string_view bytes) { write_all(fd_, bytes, path_); }

void EventFile::scalars(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, value] : values) {
    std::string one;
    put_bytes(one, 1, tag);
    put_key(one, 2, 5);
    put_le(one, std::bit_cast<uint32_t>(static_cast<float>(value)));
    put_bytes(summary, 1, one);
  }
  std::string record = event(wall_time, step);
  put_bytes(record, 5, summary);
  append(tf_record(record));
}

}  // namespace specdec::distill
