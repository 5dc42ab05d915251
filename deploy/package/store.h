// Moves and lists the channels of a store, pins packages, and removes unused packages. STORE/refs/NAME holds the digest
// of the package to which channel NAME points. STORE/refs/NAME.log records every move of the channel, one JSON object
// per line: time, who, action, why, from, to, and for a signed channel the number of its new record. In a store with a
// trusted.pub, channels are signed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/schema/package_manifest.h"

namespace specdec::deploy {

// Checks that the directory can receive packages: it must be missing, empty, or a store already. Otherwise throws what
// check_output_directory (base/output_directory.h) throws. A directory with nothing but a trusted.pub counts as a
// store, so that the owner can add the keys first. Throws Error(kData) if one of the store's directories is a link.
void check_store_directory(const std::filesystem::path& store);

// Returns the package that the argument names: a directory, STORE:CHANNEL or STORE:sha256-…. Throws Error(kData) if
// there is none.
ResolvedPackage require_package(const std::string& argument);

// Creates the directories of a store for a writer. If the writer fails, the destructor removes those that this object
// created and that are still empty.
class NewStore {
 public:
  explicit NewStore(const std::filesystem::path& store);  // throws what check_store_directory() throws
  ~NewStore();
  NewStore(const NewStore&) = delete;
  NewStore& operator=(const NewStore&) = delete;
  void keep() { kept_ = true; }

 private:
  NewStore() = default;

  std::vector<std::filesystem::path> made_;
  bool kept_ = false;
};

// The source of a channel's signature: either a minisign secret key, or another store's record of this channel that was
// signed with a key that this store trusts.
struct ChannelSigner {
  std::filesystem::path key;
  std::string passphrase;
  ChannelRecord record = {};
};

// Facts about a channel's move. The channel's log records them together with the old and new digest.
struct LogEntry {
  std::string why;
  int64_t time = 0;  // unix seconds
};

struct ChannelChange {
  std::string channel, from, to;  // `from` and `to` are digests; from is "" for a new channel
  bool changed = false;           // false: the channel pointed to that package already
  int64_t number = 0;             // number of the channel's new record; 0 if it is not signed
};
void visit_fields(Fields& f, ChannelChange& change);

// Verifies the files of a package of this store, and points the channel at it. `package` is a digest, "sha256-…" (8
// digits are enough), or the package's path. The log line is durable before the reference is replaced. If the channel
// points to the package already, nothing is moved; a missing or outdated signature of the channel is renewed in a store
// with signed channels. Throws
// - Error(kUsage) for an invalid channel name, or without `signer` in a store that requires signatures;
// - Error(kData) for a package that is missing, damaged or in another store, or a record older than the channel's;
// - Error(kNetwork), the kind that means "try again", if another process is changing the channel.
ChannelChange promote(const std::filesystem::path& store, const std::string& package, const std::string& channel,
                      const LogEntry& entry, const ChannelSigner& signer = {});

// Makes the signed record that a channel has after its move with this number. Throws what sign_minisign throws.
ChannelRecord sign_channel(const std::string& channel, const std::string& digest, int64_t number, int64_t now,
                           const ChannelSigner& signer);

// Points the channel back to the package to which it pointed before the current package was promoted. Throws
// Error(kData) if there is no earlier package. If `from` is a digest, moves the channel only if it points to that
// package. So repeating the call after a crash rolls back only once. If `from` is "", always moves the channel. A
// signed channel gets a new, higher number, as with any other move.
ChannelChange rollback(const std::filesystem::path& store, const std::string& channel, const LogEntry& entry,
                       const std::string& from = "", const ChannelSigner& signer = {});

// Returns the digests of at most `count` packages to which the channel points or pointed according to its log, newest
// first. Appends the packages to which up to `count` - 1 rollbacks would lead, if they are not in the list already.
// Skips incomplete lines of the log.
std::vector<std::string> channel_history(const std::filesystem::path& store, const std::string& channel, size_t count);

// Pins or unpins a package. The pin STORE/pins/sha256-…, a file with {"time", "who", "why"}, protects the package from
// garbage collection. Both functions return whether anything changed, and throw what promote throws.
bool pin(const std::filesystem::path& store, const std::string& package, const LogEntry& entry);
bool unpin(const std::filesystem::path& store, const std::string& package);

struct ListedPackage {
  std::string digest;
  std::filesystem::path path;
  std::string problem;  // why the manifest cannot be read; "" if it was read
  PackageManifest manifest;
  std::vector<std::string> channels;  // names of the channels that point to this package, sorted
  bool pinned = false;
  std::filesystem::file_time_type written;  // when the manifest was written; sorts packages created in the same second
};
// Lists all packages, oldest first. Reads only their manifests; verify_package() also checks the other files.
std::vector<ListedPackage> list_packages(const std::filesystem::path& store);

struct Collected {
  struct Entry {
    // `why` says what kept the package: "channel production", "history of production", "pinned", "newest" or "in use";
    // "" if it was removed.
    std::string digest, why;
    uint64_t bytes = 0;
  };
  std::vector<Entry> removed, kept;
  uint64_t bytes = 0;  // total size of the removed packages
};
void visit_fields(Fields& f, Collected::Entry& package);
// Removes every package except those
// - to which a channel points, or that are among a channel's last `keep` packages, which rollbacks need;
// - that are pinned, among the store's newest `keep` packages, or used by a process.
// Also removes files that killed processes left in tmp/, refs/ and pins/ more than a day ago. With `dry_run`, removes
// nothing and returns what would be removed. Safe while other processes publish, promote and read. Throws Error(kData)
// for a damaged channel, before anything is removed. Throws Error(kNetwork), the kind that means "try again", if
// another collection is running.
Collected collect_garbage(const std::filesystem::path& store, size_t keep, bool dry_run);

}  // namespace specdec::deploy
