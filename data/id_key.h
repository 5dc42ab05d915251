// The secret key under which names are hashed: tenants, conversations and ids that hold personal data, and ids made
// from content. Without a key, anyone who has a data directory could hash a guessed name and look for it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace specdec::data {

class IdKey {
 public:
  explicit IdKey(std::string secret) : secret_(std::move(secret)) {}

  // Reads the secret from `file`. If the file does not exist, draws a random secret and stores it there (mode 0600, 64
  // hexadecimal digits). If several processes do so at the same time, all get the same secret. Throws Error(kConfig) if
  // the file holds something else, can be read by others, or is a link or not a regular file; Error(kIo) if it cannot
  // be written.
  static IdKey load_or_make(const std::filesystem::path& file);

  // Returns the first 16 hexadecimal digits of HMAC-SHA-256(secret, kind NUL name).
  std::string digest(std::string_view kind, std::string_view name) const;
  // Returns the name of a tenant in all outputs: "tenant-" and 12 digits; "" for none.
  std::string tenant(std::string_view name) const;

 private:
  std::string secret_;
};

// Returns where `data ingest` keeps the secret of the data directory `out` by default: beside it, never in it.
std::filesystem::path salt_file(const std::filesystem::path& out);

}  // namespace specdec::data
