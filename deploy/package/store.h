// The store's channels: STORE/refs/NAME holds the digest of the package that NAME serves, STORE/refs/NAME.log every
// change of it (one JSON object a line: time, who, action, why, from, to, in a signed channel its number). In a store
// with a trusted.pub channels are signed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/schema/package_manifest.h"

namespace specdec::deploy {

// What signs a channel: a secret key of minisign, or another store's record of the channel of this name, signed by one
// of this store's keys.
struct ChannelSigner {
  std::filesystem::path key;
  std::string passphrase;
  ChannelRecord record = {};
};

struct ChannelChange {
  std::string channel, from, to;  // digests; from is "" for a new channel
  bool changed = false;           // false: the channel named that package already
  int64_t number = 0;             // of a signed channel
};

// Points the channel at a package of this store, after verifying its files. `package`: a digest, "sha256-…" (8 digits
// are enough), or the package's path. The log line is durable before the reference is renamed over. Throws
// Error(kUsage) for a name that is no channel's or a store that demands signatures without `signer`, Error(kData) for a
// package that is missing, damaged or in another store or a record that is older than the channel's, Error(kNetwork) if
// another process is at it. A channel that names the package already is signed where its signature is missing, or is of
// an older state than was seen here.
ChannelChange promote(const std::filesystem::path& store, const std::string& package, const std::string& channel,
                      const std::string& why, int64_t now, const ChannelSigner& signer = {});

// What a store's channel holds after its `number`-th move. Throws as sign_minisign.
ChannelRecord sign_channel(const std::string& channel, const std::string& digest, int64_t number, int64_t now,
                           const ChannelSigner& signer);

// Back to the package the channel named before the current one was promoted. Throws Error(kData) if there is none.
// `from`: a digest; where the channel names another package nothing changes, so that doing it again after a crash rolls
// back once. "" = whatever it names. A signed channel gets a new, higher number: going back to an older package is a
// move like any other.
ChannelChange rollback(const std::filesystem::path& store, const std::string& channel, const std::string& why,
                       int64_t now, const std::string& from = "", const ChannelSigner& signer = {});

// Newest first, each once: what the channel names and what its log says it named, at most `count`; and, of as many
// rollbacks, where they would lead. Torn lines of the log are passed over.
std::vector<std::string> channel_history(const std::filesystem::path& store, const std::string& channel, size_t count);

// STORE/pins/sha256-… keeps a package from garbage collection: {"time", "who", "why"}. True if that changed anything.
// Throws as promote.
bool pin(const std::filesystem::path& store, const std::string& package, const std::string& why, int64_t now);
bool unpin(const std::filesystem::path& store, const std::string& package);

struct ListedPackage {
  std::string digest;
  std::filesystem::path path;
  std::string problem;  // why the manifest cannot be read, "" = fine
  PackageManifest manifest;
  std::vector<std::string> channels;  // that name it, sorted
  bool pinned = false;
};
// All packages, oldest first. Manifests only: damage of other files is verify's business.
std::vector<ListedPackage> list_packages(const std::filesystem::path& store);

struct Collected {
  struct Entry {
    std::string digest,
        why;  // why it stays: "channel production", "history of production", "pinned", "newest", "in use"
    uint64_t bytes = 0;
  };
  std::vector<Entry> removed, kept;
  uint64_t bytes = 0;  // of what was removed
};
// Removes the packages that nothing holds: no channel names them, none of a channel's last `keep` (what a rollback
// needs), not pinned, not among the store's newest `keep`, not in use by a process; and what killed runs left in tmp/
// and refs/ a day ago. `dry_run` only says so. Safe beside publishers, promoters and readers. Throws Error(kData) for a
// damaged channel (nothing is removed), Error(kNetwork) beside another.
Collected collect_garbage(const std::filesystem::path& store, size_t keep, bool dry_run);

}  // namespace specdec::deploy
