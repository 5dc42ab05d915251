// Parses the channels in the monitor's flags. A channel is a name in a store that points at a package; the loop may
// point it at another package.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "base/schema/package_manifest.h"

namespace specdec::monitor {

struct Channel {
  std::string store, name;
};
// Parses "STORE:CHANNEL". Throws Error(kUsage) if the argument is not of this form, because then there is no channel to
// move.
Channel channel_of(const std::string& argument, const char* flag);
// Returns the package with this digest (64 digits), or nothing if `store` does not hold it: packages may be removed at
// any time. Throws what locate_package throws for a package that is there and damaged.
std::optional<ResolvedPackage> package_in(const std::string& store, const std::string& digest);
// Returns the absolute form of `path`, because actions may run in another working directory.
std::string absolute_path(const std::filesystem::path& path);

}  // namespace specdec::monitor
