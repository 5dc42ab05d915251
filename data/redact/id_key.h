// The secret key for hashing names: tenants, conversations and ids that hold personal data, and ids made from content.
// Without a secret, anyone who has a data directory could hash a guessed name and search for it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace specdec::data {

class IdKey {
 public:
  explicit IdKey(std::string secret) : secret_(std::move(secret)) {}

  // Returns the first 16 hexadecimal digits of HMAC-SHA-256(secret, kind NUL name).
  std::string digest(std::string_view kind, std::string_view name) const;
  // Returns the name of a tenant in all outputs: "tenant-" and 12 digits; "" for none.
  std::string tenant(std::string_view name) const;

 private:
  std::string secret_;
};

// The file of a secret, locked while this object exists, so that no other run removes it.
class HeldSalt {
 public:
  // Reads the secret from `file`. If the file does not exist, draws a random secret and stores it there (mode 0600, 64
  // hexadecimal digits). If several processes do so at the same time, all get the same secret. Throws Error(kConfig) if
  // the file holds something else, can be read by others, or is a link or not a regular file; Error(kIo) if it cannot
  // be written.
  explicit HeldSalt(std::filesystem::path file);
  ~HeldSalt();
  HeldSalt(const HeldSalt&) = delete;
  HeldSalt& operator=(const HeldSalt&) = delete;

  const IdKey& key() const { return key_; }
  // For a run that wrote nothing with the secret. Removes the file if this run made it and no other run holds it. If
  // another run still holds it, the file is marked, and the last run that calls give_up() removes it. Call give_up()
  // last, because this object does not hold the file afterwards.
  void give_up();
  // For a run that wrote something with the secret: nobody may remove the file any more.
  void keep();

 private:
  bool hold();
  bool is_given_up() const;

  const std::filesystem::path file_;
  IdKey key_{""};
  int fd_ = -1;
  bool made_ = false, locked_ = false;
};

// Returns where `data ingest` keeps the secret of the data directory `out` by default: beside it, never in it.
std::filesystem::path salt_file(const std::filesystem::path& out);

}  // namespace specdec::data
