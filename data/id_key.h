// The secret under which names are written: tenants, conversations and ids that hold personal data, and ids made from
// content. Without it whoever has a data directory could hash a guessed name and look for it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace specdec::data {

class IdKey {
 public:
  explicit IdKey(std::string secret) : secret_(std::move(secret)) {}

  // Reads the secret from `file`, or draws one and keeps it there (mode 0600, 64 hexadecimal digits) if there is no
  // such file; of several processes that draw one at the same time all get the same. Throws Error(kConfig) for a file
  // that holds something else, that others may read, or that is no regular file of its own (a link), Error(kIo) if it
  // cannot be written.
  static IdKey load_or_make(const std::filesystem::path& file);

  // The first 16 hexadecimal digits of HMAC-SHA-256(secret, kind NUL name).
  std::string digest(std::string_view kind, std::string_view name) const;
  // How a tenant is named in whatever is written: "tenant-" and 12 digits; "" for none.
  std::string tenant(std::string_view name) const;

 private:
  std::string secret_;
};

// Where `data ingest` keeps the secret of the data directory `out` unless it is told: beside it, never in it.
std::filesystem::path salt_file(const std::filesystem::path& out);

}  // namespace specdec::data
