// Kinds of stores that `specdec package push | pull` know, by the beginning of their names.
#pragma once

#include "cli/package.h"
#include "deploy/package/transfer.h"

namespace specdec::cli {

struct StoreKind {
  const char* scheme;  // "" = a directory
  // Brings flags.package, which lies in a directory, into flags.store, a store of this kind, and points the channel at
  // it.
  deploy::PackageOutcome (*push)(const Global&, const PackageFlags& flags, PackageResult& result);
  // Brings flags.package, named as a store of this kind names it, into the directory flags.store.
  deploy::PackageOutcome (*pull)(const Global&, const PackageFlags& flags);
};
extern const StoreKind kS3Store, kHubStore;

}  // namespace specdec::cli
