#include "monitor/actions/channel.h"

#include "base/error.h"
#include "base/file.h"

namespace specdec::monitor {

Channel channel_of(const std::string& argument, const char* flag) {
  const size_t colon = argument.rfind(':');
  if (colon == std::string::npos || argument.compare(colon + 1, 7, "sha256-") == 0)
    throw Error(ErrorKind::kUsage, std::string(flag) + ": expected STORE:CHANNEL, found '" + argument + "'");
  require_channel_name(argument.substr(colon + 1));
  return {argument.substr(0, colon), argument.substr(colon + 1)};
}

std::optional<ResolvedPackage> package_in(const std::string& store, const std::string& digest) {
  const std::string name = "sha256-" + digest;
  if (!fs::is_directory(fs::path(store) / "packages" / name)) return std::nullopt;
  return locate_package(store + ":" + name);
}

std::string absolute_path(const fs::path& path) { return fs::absolute(path).lexically_normal().string(); }

}  // namespace specdec::monitor
