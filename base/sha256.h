// SHA-256 through OpenSSL: identity of files, models and packages; and git's names of files. Lower-case hexadecimal
// everywhere.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace specdec {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(std::span<const std::byte> bytes);
  void update(std::string_view bytes);
  std::string hex();  // finishes; call once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::string_view bytes);
// HMAC-SHA-256 (RFC 2104), 32 bytes: who holds the key wrote these bytes.
std::string hmac_sha256(std::string_view key, std::string_view bytes);
std::string to_hex(std::string_view bytes);
// Digest of a regular file, read in blocks. Throws Error(kData) if missing or not regular, Error(kIo) on read errors.
std::string sha256_file(const std::filesystem::path& file);
// What git calls a file of these bytes: SHA-1 of "blob <size>", NUL, bytes. A name, no protection against forgery.
std::string git_blob_id(std::string_view bytes);

}  // namespace specdec
