// SHA-256 and HMAC-SHA-256 through OpenSSL, and git's ids of files. SHA-256 identifies files, models and packages.
// Digests and ids are lower-case hexadecimal; the HMAC is raw bytes.
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
  std::string hex();  // finishes the digest; call once

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::string_view bytes);
// Returns HMAC-SHA-256 (RFC 2104), 32 raw bytes, which proves that the holder of the key wrote `bytes`.
std::string hmac_sha256(std::string_view key, std::string_view bytes);
std::string to_hex(std::string_view bytes);
// Returns the digest of a regular file, read in blocks. Throws Error(kData) if it is missing or not regular, Error(kIo)
// on read errors.
std::string sha256_file(const std::filesystem::path& file);
// SHA-1, and git's id of a file with these bytes: SHA-1 of "blob <size>", NUL, bytes. They only name the file and do
// not protect against forgery.
std::string sha1_hex(std::string_view bytes);
std::string git_blob_id(std::string_view bytes);

}  // namespace specdec
