// The flags of the monitor name channels of a store, which hold the packages that the loop moves.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/schema/package_manifest.h"

namespace specdec::monitor {

struct Channel {
  std::string store, name;
};
// Parses "STORE:CHANNEL". Throws Error(kUsage) for a package that is named otherwise, because it has no channel that
// could be moved.
Channel channel_of(const std::string& argument, const char* flag);
// Returns nothing where the store does not hold the package, or no longer does.
std::optional<ResolvedPackage> package_in(const std::string& store, const std::string& digest);
// Returns the path from the root, because actions are done from any working directory.
std::string absolute_path(const std::filesystem::path& path);

}  // namespace specdec::monitor
