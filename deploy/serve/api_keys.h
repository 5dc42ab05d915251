// API keys: kept as SHA-256 digests, compared in constant time.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace specdec::deploy {

class ApiKeys {
 public:
  static constexpr char kOperator[] = "operator";  // the name whose keys see the domains of all tenants in /metrics

  ApiKeys() = default;
  // One key a line, optionally followed by white space and a name; '#' starts a comment line. Throws Error(kConfig) for
  // a file without keys and for keys shorter than 8 characters or repeated.
  static ApiKeys load(const std::filesystem::path& file);

  bool required() const { return !digests_.empty(); }
  // The value of an Authorization header: "Bearer KEY", or "Basic base64(anything:KEY)" for browsers. Every key is
  // compared whatever the result, each over the whole digest.
  bool accepts(std::string_view authorization) const { return tenant(authorization) != nullptr; }
  // Whose key it is: its name, which several keys may share; of a key without one the beginning of its digest. Null: no
  // key of the file.
  const std::string* tenant(std::string_view authorization) const;
  size_t tenants() const;

 private:
  const std::string* find(std::string_view key) const;
  std::vector<std::string> digests_, names_;  // by key
};

// Throws Error(kUsage) unless `host` (a name or an address) is loopback only or keys are required.
void check_exposure(const std::string& host, const ApiKeys& keys);

}  // namespace specdec::deploy
