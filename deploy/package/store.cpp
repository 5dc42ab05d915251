#include "deploy/package/store.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>

#include "base/clock.h"
#include "base/file.h"

namespace specdec::deploy {

namespace {

constexpr size_t kMaxLogBytes = 64u << 20;

void require_store(const fs::path& store) {
  if (!fs::is_directory(store / "packages")) throw Error(ErrorKind::kData, store.string() + ": not a store (no packages/ below it): specdec package makes one");
}

std::string who() {
  const char* user = std::getenv("USER");
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return (user ? std::string(user) : "uid " + std::to_string(::getuid())) + "@" + host;
}

// A digest, a name or a path to the argument that locate_package knows, then the package; it must lie in this store.
ResolvedPackage find_package(const fs::path& store, const std::string& package) {
  const bool name = package.rfind("sha256-", 0) == 0, digest = is_sha256_hex(package);
  const auto found = locate_package(name ? store.string() + ":" + package : digest ? store.string() + ":sha256-" + package : package);
  if (!found) throw Error(ErrorKind::kData, package + ": not a package");
  std::error_code ec;
  if (!fs::equivalent(fs::absolute(found->root).lexically_normal().parent_path(), store / "packages", ec) &&
      !fs::equivalent(found->root, store / "packages" / ("sha256-" + found->digest), ec))
    throw Error(ErrorKind::kData, package + ": is not in the store " + store.string());
  return *found;
}

// The log line first: a reference that moved is then always in the log, and a line without a move does no harm.
ChannelChange move_channel(const fs::path& store, const std::string& channel, const std::string& to, const std::string& action, const std::string& why,
                           int64_t now) {
  const ChannelChange change{channel, read_channel(store, channel), to, true};
  if (change.from == to) return {channel, to, to, false};
  append_line(store / "refs" / (channel + ".log"),
              canonical_json({{"time", format_utc(now)}, {"who", who()}, {"action", action}, {"why", why}, {"from", change.from}, {"to", to}}), /*durable=*/true);
  write_file_atomic(store / "refs" / channel, to + "\n");
  return change;
}

void make_channel_directories(const fs::path& store) {
  make_directories(store / "refs");
  make_directories(store / "tmp");
}

// Where the channel was before `current` was promoted: the last promotion to it says. "" if the log knows none.
std::string previous_of(const fs::path& store, const std::string& channel, const std::string& current) {
  const fs::path log = store / "refs" / (channel + ".log");
  if (!fs::exists(log)) return "";
  std::istringstream lines(read_file(log, kMaxLogBytes));
  std::string previous;
  for (std::string line; std::getline(lines, line);) {
    try {
      const Json entry = parse_json(line, log.string());
      if (json_string(entry, "action", log.string(), ErrorKind::kData) == "promote" && json_string(entry, "to", log.string(), ErrorKind::kData) == current)
        previous = json_digest(entry, "from", true, log.string(), ErrorKind::kData);
    } catch (const Error&) {
      continue;  // a torn line of a process that was killed
    }
  }
  return previous;
}

}  // namespace

ChannelChange promote(const fs::path& store, const std::string& package, const std::string& channel, const std::string& why, int64_t now) {
  require_channel_name(channel);
  require_store(store);
  const ResolvedPackage found = find_package(store, package);
  verify_files(found.root, found.manifest, true);
  make_channel_directories(store);
  const FileLock lock(store / "tmp" / (channel + ".lock"));
  return move_channel(store, channel, found.digest, "promote", why, now);
}

ChannelChange rollback(const fs::path& store, const std::string& channel, const std::string& why, int64_t now) {
  require_store(store);
  const std::string current = read_channel(store, channel);
  if (current.empty()) throw Error(ErrorKind::kData, store.string() + ": no channel '" + channel + "'");
  make_channel_directories(store);
  const FileLock lock(store / "tmp" / (channel + ".lock"));
  const std::string previous = previous_of(store, channel, current);
  if (previous.empty()) throw Error(ErrorKind::kData, store.string() + ": channel '" + channel + "' had no package before " + current.substr(0, 12));
  const ResolvedPackage found = find_package(store, previous);
  verify_files(found.root, found.manifest, true);
  return move_channel(store, channel, previous, "rollback", why, now);
}

std::vector<ListedPackage> list_packages(const fs::path& store) {
  require_store(store);
  std::map<std::string, std::vector<std::string>> channels;  // digest → names
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(store / "refs", ec)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".log") || name.ends_with(".partial")) continue;
    channels[read_channel(store, name)].push_back(name);
  }
  std::vector<ListedPackage> packages;
  for (const auto& entry : fs::directory_iterator(store / "packages")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("sha256-", 0) != 0) continue;
    ListedPackage listed;
    listed.digest = name.substr(7);
    listed.path = entry.path();
    listed.channels = channels[listed.digest];
    std::sort(listed.channels.begin(), listed.channels.end());
    try {
      listed.manifest = read_manifest(entry.path());
    } catch (const Error& e) {
      listed.problem = e.what();
    }
    packages.push_back(std::move(listed));
  }
  std::sort(packages.begin(), packages.end(), [](const auto& a, const auto& b) {
    return std::pair(a.manifest.created, a.digest) < std::pair(b.manifest.created, b.digest);
  });
  return packages;
}

}  // namespace specdec::deploy
