// The kinds of stores between which packages are pushed and pulled: directories, S3 and Hugging Face hubs, each a
// PackageStore.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/progress.h"
#include "deploy/package/package.h"
#include "deploy/package/store.h"

namespace specdec::deploy {

// A request to copy a package from one store into another.
struct PackageTransfer {
  std::string package;  // address in its store: a directory, STORE:CHANNEL or STORE:sha256-…
  std::string store;    // the store that receives it
  std::string channel;  // channel of the receiving store that will point to the package; "" = none (at a hub: main)
  std::string why;      // recorded in a directory's channel log and in a hub's commit
  std::function<ChannelSigner()> signer;  // called if a channel must be signed
  bool has_key = false;                   // whether `signer` has a secret key
  bool make_public = false;               // if the push creates the repository at the hub, it creates a public one
  bool understood = false;                // the user agreed to send a private package where anyone can read it
  int64_t now = 0;                        // unix seconds
};

// The result of a transfer.
struct TransferOutcome {
  PackageOutcome package;
  std::optional<ChannelChange> change = std::nullopt;  // move of the receiving store's channel, if the store reports it
  std::string commit = {};                             // id of the commit, if the receiving store is a hub
};

// A kind of store. The object has no state of its own; each call works on the store that the transfer names.
class PackageStore {
 public:
  virtual ~PackageStore() = default;
  virtual const char* scheme() const = 0;  // the prefix of store names of this kind, such as "s3://"; "" = a directory
  // Copies transfer.package into transfer.store, a store of this kind, and points the channel at it. A push to S3
  // or to a hub requires that the package is in a local directory.
  virtual TransferOutcome push(const PackageTransfer& transfer, const ProgressFn& progress) const = 0;
  // Copies transfer.package, an address in a store of this kind, into the local directory transfer.store.
  virtual PackageOutcome pull(const PackageTransfer& transfer, const ProgressFn& progress) const = 0;
};

// Copies the package between two stores, at least one of which must be a directory. Throws Error(kUsage) if none is a
// directory or if a name does not denote a store, and what the stores throw: Error(kData | kNetwork | kIo).
TransferOutcome transfer(const PackageTransfer& transfer, const ProgressFn& progress);

}  // namespace specdec::deploy
