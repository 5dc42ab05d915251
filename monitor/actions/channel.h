// Parses the channels in the monitor's flags. A channel is a name in a store that points to a package; the loop can
// make it point to another package.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/schema/package_manifest.h"

namespace specdec::monitor {

struct Channel {
  std::string store, name;
};
// Parses "STORE:CHANNEL". Throws Error(kUsage) for any other form, such as a package directory, which has no channel
// that the loop could move.
Channel channel_of(const std::string& argument, const char* flag);
// Returns the package with this digest (64 digits), or nothing if `store` does not have it, because packages may be
// removed at any time. Throws what locate_package throws for a damaged package.
std::optional<ResolvedPackage> package_in(const std::string& store, const std::string& digest);
// Returns the absolute form of `path`, because actions may run in another working directory.
std::string absolute_path(const std::filesystem::path& path);

}  // namespace specdec::monitor
