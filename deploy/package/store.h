// The store's channels: STORE/refs/NAME holds the digest of the package that NAME serves, STORE/refs/NAME.log every change of it
// (one JSON object a line: time, who, action, why, from, to).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/schema/package_manifest.h"

namespace specdec::deploy {

struct ChannelChange {
  std::string channel, from, to;   // digests; from is "" for a new channel
  bool changed = false;            // false: the channel named that package already
};

// Points the channel at a package of this store, after verifying its files. `package`: a digest, "sha256-…" (8 digits are enough),
// or the package's path. The log line is durable before the reference is renamed over. Throws Error(kUsage) for a name that is no
// channel's, Error(kData) for a package that is missing, damaged or in another store, Error(kNetwork) if another process is at it.
ChannelChange promote(const std::filesystem::path& store, const std::string& package, const std::string& channel, const std::string& why, int64_t now);

// Back to the package the channel named before the current one was promoted. Throws Error(kData) if there is none.
ChannelChange rollback(const std::filesystem::path& store, const std::string& channel, const std::string& why, int64_t now);

struct ListedPackage {
  std::string digest;
  std::filesystem::path path;
  std::string problem;                   // why the manifest cannot be read, "" = fine
  PackageManifest manifest;
  std::vector<std::string> channels;     // that name it, sorted
};
// All packages, oldest first. Manifests only: damage of other files is verify's business.
std::vector<ListedPackage> list_packages(const std::filesystem::path& store);

}  // namespace specdec::deploy
