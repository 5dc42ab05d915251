// Parses the channels that the monitor's flags name. A channel is a name in a store; it points at a package, and the
// loop moves it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/schema/package_manifest.h"

namespace specdec::monitor {

struct Channel {
  std::string store, name;
};
// Parses "STORE:CHANNEL". Throws Error(kUsage) if the package is named in another way, because then there is no channel
// to move.
Channel channel_of(const std::string& argument, const char* flag);
// Returns nothing if the store does not hold the package (any more).
std::optional<ResolvedPackage> package_in(const std::string& store, const std::string& digest);
// Returns the absolute path, because actions may run in any working directory.
std::string absolute_path(const std::filesystem::path& path);

}  // namespace specdec::monitor
