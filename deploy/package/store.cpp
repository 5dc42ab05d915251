#include "deploy/package/store.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <sstream>
#include <tuple>

#include "base/clock.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/log.h"
#include "base/minisign.h"
#include "base/output_directory.h"

namespace specdec::deploy {

namespace {

constexpr size_t kMaxLogBytes = 64u << 20;
const char kRemovedSuffix[] = ".removed.partial";

// Throws if one of the store's own directories is a link. Otherwise this process could write and remove files outside
// the store.
void refuse_links(const fs::path& store) {
  for (const char* own : {"packages", "refs", "pins", "tmp"}) {
    std::error_code none;
    if (fs::is_symlink(fs::symlink_status(store / own, none)))
      throw Error(ErrorKind::kData, (store / own).string() + ": is a link, expected a directory of the store itself");
  }
}

void require_store(const fs::path& store) {
  refuse_links(store);
  if (!fs::is_directory(store / "packages"))
    throw Error(ErrorKind::kData, store.string() + ": not a store (no packages/ below it): specdec package makes one");
}

std::string who() {
  const char* user = std::getenv("USER");
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return (user ? std::string(user) : "uid " + std::to_string(::getuid())) + "@" + host;
}

// Resolves a digest, a name "sha256-…" or a path to its package, which must be in this store.
ResolvedPackage find_package(const fs::path& store, const std::string& package) {
  const bool name = package.rfind("sha256-", 0) == 0, digest = is_sha256_hex(package);
  const auto found = locate_package(name     ? store.string() + ":" + package
                                    : digest ? store.string() + ":sha256-" + package
                                             : package);
  if (!found) throw Error(ErrorKind::kData, package + ": not a package");
  std::error_code ec;
  if (!fs::equivalent(fs::absolute(found->root).lexically_normal().parent_path(), store / "packages", ec) &&
      !fs::equivalent(found->root, store / "packages" / ("sha256-" + found->digest), ec))
    throw Error(ErrorKind::kData, package + ": is not in the store " + store.string());
  return *found;
}

// A requested move of a channel to another package.
struct ChannelMove {
  std::string channel, to;  // `to` is a digest
  const char* action;       // the field `action` of the channel's log
  LogEntry entry;
};

// Returns the channel's next record. If the store requires no signatures, the record is unsigned. If `signer` has a
// key, the record is signed here, with a number above all known numbers. Otherwise signer.record, the signed record
// that comes with the package, is returned. Its number must be at least the highest known number.
ChannelRecord next_record(const fs::path& store, const ChannelMove& move, const ChannelRecord& current,
                          const ChannelSigner& signer) {
  const std::string& channel = move.channel;
  const fs::path keys = trusted_keys(store);
  ChannelRecord next;
  next.digest = move.to;
  if (keys.empty()) return next;
  const int64_t known = std::max(current.number, seen_number(store, channel));
  const std::vector<MinisignPublicKey> trusted = read_minisign_keys(keys);
  if (!signer.key.empty()) {
    next = sign_channel(channel, move.to, known + 1, move.entry.time, signer);
    verify_minisign(next.statement, next.signature, trusted, signer.key.string());
    return next;
  }
  const ChannelRecord& given = signer.record;
  if (given.number == 0 || given.statement != channel_statement(channel, move.to, given.number))
    throw Error(ErrorKind::kUsage,
                "--key: " + keys.string() + " demands signed channels: expected the secret key that signs " + channel);
  verify_minisign(given.statement, given.signature, trusted,
                  "the record of channel " + channel + " that comes with the package");
  if (given.number < known)
    throw Error(ErrorKind::kData, (store / "refs" / channel).string() + ": is number " + std::to_string(known) +
                                      " here, and the record that comes with the package is number " +
                                      std::to_string(given.number) + ": an older state of the channel");
  return given;
}

// Moves the channel. Appends the log line first, so that the log contains every move. If the move then fails, the log
// has a line too many, which does no harm.
ChannelChange move_channel(const fs::path& store, const ChannelMove& move, const ChannelSigner& signer) {
  const auto& [channel, to, action, entry] = move;
  const ChannelRecord current = read_channel_record(store, channel);
  const bool same = current.digest == to;
  const bool signing_only =
      same && !trusted_keys(store).empty() && current.number < std::max<int64_t>(1, seen_number(store, channel));
  if (same && !signing_only) return {channel, to, to, false, current.number};
  const ChannelRecord next = next_record(store, move, current, signer);
  if (!same) {
    Json line = {{"time", format_utc(entry.time)}, {"who", who()}, {"action", action}, {"why", entry.why},
                 {"from", current.digest},         {"to", to}};
    if (next.number > 0) line["number"] = next.number;
    append_line(store / "refs" / (channel + ".log"), canonical_json(line), /*durable=*/true);
  }
  write_file_atomic(store / "refs" / channel, to_text(next));
  return {channel, current.digest, to, true, next.number};
}

void make_channel_directories(const fs::path& store) {
  make_directories(store / "refs");
  make_directories(store / "tmp");
}

struct Move {
  std::string action, from, to;
};
// Returns the moves in the log, oldest first. Skips incomplete lines, which a killed process may leave.
std::vector<Move> read_log(const fs::path& store, const std::string& channel) {
  const fs::path log = store / "refs" / (channel + ".log");
  std::vector<Move> moves;
  if (!fs::exists(log)) return moves;
  std::istringstream lines(read_file(log, kMaxLogBytes));
  for (std::string line; std::getline(lines, line);) {
    try {
      const Json entry = parse_json(line, log.string());
      moves.push_back({json_string(entry, "action", log.string(), ErrorKind::kData),
                       json_digest(entry, "from", true, log.string(), ErrorKind::kData),
                       json_digest(entry, "to", false, log.string(), ErrorKind::kData)});
    } catch (const Error&) {
      continue;
    }
  }
  return moves;
}

// Returns the digest to which the channel pointed before the last promotion of `current`; "" if the log has no such
// promotion.
std::string previous_of(const std::vector<Move>& moves, const std::string& current) {
  for (auto move = moves.rbegin(); move != moves.rend(); ++move)
    if (move->action == "promote" && move->to == current) return move->from;
  return "";
}

std::vector<std::string> channel_names(const fs::path& store) {
  std::vector<std::string> names;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(store / "refs", ec)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".log") || name.ends_with(".partial")) continue;
    try {
      require_channel_name(name);
      names.push_back(name);
    } catch (const Error& e) {
      log(LogLevel::kWarn, (store / "refs").string() + ": skipped: " + e.what());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

fs::path pin_of(const fs::path& store, const std::string& digest) { return store / "pins" / ("sha256-" + digest); }

// Returns the packages that garbage collection keeps whatever their age: a map from digest to the reason.
std::map<std::string, std::string> marks(const fs::path& store, size_t keep) {
  std::map<std::string, std::string> why;
  for (const std::string& channel : channel_names(store)) {
    why[read_channel(store, channel)] = "channel " + channel;
    for (const std::string& digest : channel_history(store, channel, keep))
      why.emplace(digest, "history of " + channel);
  }
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(store / "pins", ec))
    if (const std::string name = entry.path().filename().string(); name.size() == 71)
      why.emplace(name.substr(7), "pinned");
  return why;
}

uint64_t bytes_below(const fs::path& directory) {
  uint64_t bytes = 0;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec))
    if (std::error_code no_file; it->is_regular_file(no_file)) bytes += it->file_size(no_file);
  return bytes;
}

}  // namespace

void check_store_directory(const fs::path& store) {
  check_output_directory(store, {.flag = "--store",
                                 .command = "specdec package",
                                 .results = {{"packages", ""}, {"refs", ""}, {"trusted.pub", ""}}});
  refuse_links(store);
}

ResolvedPackage require_package(const std::string& argument) {
  if (auto package = locate_package(argument)) return *package;
  const size_t colon = argument.rfind(':');
  const std::string store = colon == std::string::npos ? "" : argument.substr(0, colon);
  if (!store.empty() && !fs::exists(store)) throw Error(ErrorKind::kData, argument + ": there is no store " + store);
  throw Error(ErrorKind::kData, argument + ": not a package (no manifest.json)");
}

NewStore::NewStore(const fs::path& store) : NewStore() {  // delegates, so that a failure below runs the destructor
  refuse_links(store);
  for (const fs::path& path : {store, store / "packages", store / "refs", store / "tmp"}) {
    if (!fs::exists(path)) made_.push_back(path);
    make_directories(path);
  }
}

NewStore::~NewStore() {
  if (kept_) return;
  std::error_code not_empty;  // a directory with files that other processes wrote cannot be removed, and stays
  for (auto path = made_.rbegin(); path != made_.rend(); ++path) fs::remove(*path, not_empty);
}

ChannelRecord sign_channel(const std::string& channel, const std::string& digest, int64_t number, int64_t now,
                           const ChannelSigner& signer) {
  const std::string statement = channel_statement(channel, digest, number);
  return {digest, number, statement,
          sign_minisign(
              statement, signer.key, signer.passphrase,
              "timestamp:" + std::to_string(now) + "\tchannel:" + channel + "\tnumber:" + std::to_string(number))};
}

ChannelChange promote(const fs::path& store, const std::string& package, const std::string& channel,
                      const LogEntry& entry, const ChannelSigner& signer) {
  const PublicFiles in_a_store;
  require_channel_name(channel);
  require_store(store);
  const ResolvedPackage found = find_package(store, package);  // locked against removal until the channel names it
  require_trusted(found);
  verify_files(found.root, found.manifest, true);
  make_channel_directories(store);
  const FileLock lock(store / "tmp" / (channel + ".lock"));
  return move_channel(store, {.channel = channel, .to = found.digest, .action = "promote", .entry = entry}, signer);
}

ChannelChange rollback(const fs::path& store, const std::string& channel, const LogEntry& entry,
                       const std::string& from, const ChannelSigner& signer) {
  const PublicFiles in_a_store;
  require_channel_name(channel);
  require_store(store);
  make_channel_directories(store);
  const FileLock lock(store / "tmp" / (channel + ".lock"));
  const std::string current = read_channel(store, channel);
  if (current.empty()) throw Error(ErrorKind::kData, store.string() + ": no channel '" + channel + "'");
  if (!from.empty() && from != current) return {channel, current, current, false, 0};
  const std::string previous = previous_of(read_log(store, channel), current);
  if (previous.empty())
    throw Error(ErrorKind::kData,
                store.string() + ": channel '" + channel + "' had no package before " + current.substr(0, 12));
  const ResolvedPackage found = find_package(store, previous);
  require_trusted(found);
  verify_files(found.root, found.manifest, true);
  return move_channel(store, {.channel = channel, .to = previous, .action = "rollback", .entry = entry}, signer);
}

std::vector<std::string> channel_history(const fs::path& store, const std::string& channel, size_t count) {
  std::vector<std::string> history;
  const auto add = [&history](const std::string& digest) {
    if (!digest.empty() && std::find(history.begin(), history.end(), digest) == history.end())
      history.push_back(digest);
  };
  const std::string current = read_channel(store, channel);
  const std::vector<Move> moves = read_log(store, channel);
  add(current);
  for (auto move = moves.rbegin(); move != moves.rend() && history.size() < count; ++move) add(move->to);
  std::string at = current;
  for (size_t i = 0; i < count && !at.empty(); ++i, at = previous_of(moves, at)) add(at);
  return history;
}

bool pin(const fs::path& store, const std::string& package, const LogEntry& entry) {
  const PublicFiles in_a_store;
  require_store(store);
  const ResolvedPackage found = find_package(store, package);
  if (fs::exists(pin_of(store, found.digest))) return false;
  make_directories(store / "pins");
  write_file_atomic(pin_of(store, found.digest),
                    canonical_json({{"time", format_utc(entry.time)}, {"who", who()}, {"why", entry.why}}) + "\n");
  return true;
}

bool unpin(const fs::path& store, const std::string& package) {
  require_store(store);
  const fs::path file = pin_of(store, find_package(store, package).digest);
  if (!fs::exists(file)) return false;
  remove_tree(file);
  fsync_directory(file.parent_path());
  return true;
}

std::vector<ListedPackage> list_packages(const fs::path& store) {
  require_store(store);
  std::map<std::string, std::vector<std::string>> channels;  // digest → names of the channels that point to it
  for (const std::string& name : channel_names(store)) channels[read_channel(store, name)].push_back(name);
  std::vector<ListedPackage> packages;
  for (const auto& entry : fs::directory_iterator(store / "packages")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("sha256-", 0) != 0) continue;
    ListedPackage listed;
    listed.digest = name.substr(7);
    listed.path = entry.path();
    listed.channels = channels[listed.digest];
    listed.pinned = fs::exists(pin_of(store, listed.digest));
    std::error_code gone;
    listed.written = fs::last_write_time(entry.path(), gone);
    try {
      listed.manifest = read_manifest(entry.path());
    } catch (const Error& e) {
      if (!fs::exists(entry.path())) continue;  // another process has removed the file meanwhile
      listed.problem = e.what();
    }
    packages.push_back(std::move(listed));
  }
  std::sort(packages.begin(), packages.end(), [](const auto& a, const auto& b) {
    return std::tie(a.manifest.created, a.written, a.digest) < std::tie(b.manifest.created, b.written, b.digest);
  });
  return packages;
}

Collected collect_garbage(const fs::path& store, size_t keep, bool dry_run) {
  const PublicFiles in_a_store;
  require_store(store);
  make_channel_directories(store);
  const FileLock lock(store / "tmp" / "gc.lock");
  Collected collected;
  if (!dry_run) {
    for (const auto& entry : fs::directory_iterator(store / "tmp"))
      // A garbage collection that was killed has left this directory.
      if (entry.path().filename().string().ends_with(kRemovedSuffix)) remove_tree(entry.path());
    for (const char* below : {"tmp", "refs", "pins"}) remove_partials(store / below, 24 * 3600);
  }
  const std::vector<ListedPackage> packages = list_packages(store);
  std::map<std::string, std::string> why = marks(store, keep);
  for (size_t i = packages.size() - std::min(keep, packages.size()); i < packages.size(); ++i)
    why.emplace(packages[i].digest, "newest");
  for (const ListedPackage& package : packages) {
    Collected::Entry entry{package.digest, why.count(package.digest) ? why[package.digest] : "",
                           bytes_below(package.path)};
    if (entry.why.empty()) {
      const DirectoryLock taken(package.path, DirectoryLock::Kind::kExclusive);
      if (taken.state() == DirectoryLock::State::kGone) continue;
      // Whoever points a channel or pin at a package holds the package's lock until the file is written. So while the
      // exclusive lock is held here, no new channel or pin can point to the package.
      const auto now = marks(store, keep);
      if (const auto mark = now.find(package.digest); mark != now.end())
        entry.why = mark->second;
      else if (taken.state() != DirectoryLock::State::kHeld)
        entry.why =
            taken.state() == DirectoryLock::State::kTaken ? "in use" : "the file system has no locks: it may be in use";
      else if (!dry_run) {
        const fs::path grave = store / "tmp" / ("sha256-" + package.digest + kRemovedSuffix);
        rename_file(package.path, grave);
        fsync_directory(store / "packages");
        remove_tree(grave);
      }
    }
    if (entry.why.empty()) collected.bytes += entry.bytes;
    (entry.why.empty() ? collected.removed : collected.kept).push_back(entry);
  }
  return collected;
}

void visit_fields(Fields& f, ChannelChange& change) {
  f.type("ChannelChange", "What a channel named before and names now.");
  f("name", change.channel);
  f("from", change.from);
  f("to", change.to);
  f("changed", change.changed);
}

void visit_fields(Fields& f, Collected::Entry& package) {
  f.type("CollectedPackage", "A package that was removed or kept, and why.");
  f("digest", package.digest);
  f("bytes", package.bytes, kAnyCount);
  f("why", package.why);
}

}  // namespace specdec::deploy
