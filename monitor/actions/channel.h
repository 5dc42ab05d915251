// Parses the channels that the monitor's flags name. A channel is a name in a store that points at a package. The loop
// can make it point at another package.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/schema/package_manifest.h"

namespace specdec::monitor {

struct Channel {
  std::string store, name;
};
// Parses "STORE:CHANNEL". Throws Error(kUsage) if the argument names a package in another way, because then there is no
// channel to move.
Channel channel_of(const std::string& argument, const char* flag);
// Returns the package with this digest (64 digits), or nothing if `store` does not hold it: packages may be removed at
// any time. Throws what locate_package throws for a package that is there and damaged.
std::optional<ResolvedPackage> package_in(const std::string& store, const std::string& digest);
// Returns the absolute path, because actions may run in any working directory.
std::string absolute_path(const std::filesystem::path& path);

}  // namespace specdec::monitor
