// API keys, stored as SHA-256 digests and compared in constant time.
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
  static constexpr char kOperator[] = "operator";  // keys of this name see every tenant's domains in /metrics

  ApiKeys() = default;
  // Reads one key per line, optionally followed by white space and a name; '#' starts a comment line. Throws
  // Error(kConfig) if the file has no keys, or if a key is shorter than 8 characters or repeated.
  static ApiKeys load(const std::filesystem::path& file);

  // Returns the one key of the variable SPECDEC_API_KEY. Throws Error(kConfig) if it is shorter than 8 characters or
  // holds white space.
  static ApiKeys single(const Secret& key);

  bool required() const { return !digests_.empty(); }
  // Returns whether an Authorization header has a known key. Takes the header's value, "Bearer KEY" or, for browsers,
  // "Basic base64(anything:KEY)". Always compares the key with every stored digest, and each digest to its end.
  bool accepts(std::string_view authorization) const { return tenant(authorization) != nullptr; }
  // Returns the tenant that a header's key belongs to: the key's name, which several keys may share, or the first
  // digits of its digest if it has no name. Returns null if the key is unknown.
  const std::string* tenant(std::string_view authorization) const;
  std::set<std::string> tenants() const;

 private:
  const std::string* find(std::string_view key) const;
  std::vector<std::string> digests_, names_;  // indexed by key
};

// Throws Error(kUsage) unless `host` (a name or an address) is loopback only or keys are required.
void check_exposure(const std::string& host, const ApiKeys& keys);

}  // namespace specdec::deploy
