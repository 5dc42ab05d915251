// Where packages are pushed to and pulled from: directories, S3 and hubs, each a PackageStore.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/progress.h"
#include "deploy/package/package.h"
#include "deploy/package/store.h"

namespace specdec::deploy {

// A package that is brought from one store into another.
struct PackageTransfer {
  std::string package;                    // as its store names it: a directory, STORE:CHANNEL or STORE:sha256-…
  std::string store;                      // that gets it
  std::string channel;                    // there, which names it afterwards; "" = none, at a hub main
  std::string why;                        // kept in a directory's channel log and in a hub's commit
  std::function<ChannelSigner()> signer;  // asked where a channel is signed
  bool has_key = false;                   // the signer has a secret key
  bool make_public = false;               // a repository that a hub has not yet
  bool understood = false;                // a private package may go where anyone can read it
  int64_t now = 0;                        // unix seconds
};

// What a transfer did beside the package itself.
struct TransferOutcome {
  PackageOutcome package;
  std::optional<ChannelChange> change = std::nullopt;  // of the channel, where the store knows it
  std::string commit = {};                             // at a hub
};

// A kind of store. It has no state of its own; each call reaches the store that the transfer names.
class PackageStore {
 public:
  virtual ~PackageStore() = default;
  virtual const char* scheme() const = 0;  // the beginning of its names; "" = a directory
  // Brings transfer.package, which lies in a directory, into transfer.store, a store of this kind, and points the
  // channel at it.
  virtual TransferOutcome push(const PackageTransfer& transfer, const ProgressFn& progress) const = 0;
  // Brings transfer.package, named as a store of this kind names it, into the directory transfer.store.
  virtual PackageOutcome pull(const PackageTransfer& transfer, const ProgressFn& progress) const = 0;
};

// Brings the package into its store; one of the two must be a directory. Throws Error(kUsage) for two stores that are
// none or for a name that is no store's, and what the stores throw: Error(kData | kNetwork | kIo).
TransferOutcome transfer(const PackageTransfer& transfer, const ProgressFn& progress);

}  // namespace specdec::deploy
