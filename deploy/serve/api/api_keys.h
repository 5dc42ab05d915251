// API keys. They are stored as SHA-256 digests and compared in constant time.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.h"

namespace specdec::deploy {

class ApiKeys {
 public:
  static constexpr char kOperator[] = "operator";  // a key with this name sees the domains of all tenants in /metrics

  ApiKeys() = default;
  // Reads one key per line, optionally followed by white space and a name; '#' starts a comment line. Throws
  // Error(kConfig) if the file has no keys, or if a key is shorter than 8 characters or repeated.
  static ApiKeys load(const std::filesystem::path& file);

  // Returns the single key in the environment variable SPECDEC_API_KEY. Throws Error(kConfig) if it is shorter than 8
  // characters or holds white space.
  static ApiKeys single(const Secret& key);

  bool required() const { return !digests_.empty(); }
  // Returns whether an Authorization header has a known key. Takes the header's value, "Bearer KEY" or, for browsers,
  // "Basic base64(anything:KEY)". Always compares the whole digest of the key with every stored digest.
  bool accepts(std::string_view authorization) const { return tenant(authorization) != nullptr; }
  // Returns the tenant to which a header's key belongs: the key's name, which several keys may share, or the first
  // digits of its digest if it has no name. Returns null if the key is unknown.
  const std::string* tenant(std::string_view authorization) const;
  std::set<std::string> tenants() const;

 private:
  const std::string* find(std::string_view key) const;
  std::vector<std::string> digests_, names_;  // both have one element per key
};

// Throws Error(kUsage) if no keys are required and `host` (a name or an address) is reachable from other machines.
void check_exposure(const std::string& host, const ApiKeys& keys);

}  // namespace specdec::deploy
