// MODEL arguments: where on disk the model lies that a user named.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "base/file_lock.h"
#include "base/hub_cache.h"
#include "base/schema/package_manifest.h"

namespace specdec {

struct ResolvedModel {
  std::filesystem::path directory;  // a Hugging Face directory; of a package: its target
  std::filesystem::path draft;      // the package's draft, empty for anything else
  std::string package_digest;       // 64 hex digits, empty unless a package
  std::string stale_reason;  // of a package whose target is no longer the one it was validated with: why; else empty
  std::string hub_commit;    // of a hub name, also a package's for its target; else empty
  std::shared_ptr<const DirectoryLock> hold = {};  // of a package (base/schema/package_manifest.h); else empty
  // of a package, its own target left out where it is stale: asked after loading; else empty
  std::shared_ptr<const VerifiedFiles> verified = {};
};
// `argument`: a local directory with config.json; a package (directory, "STORE:CHANNEL", "STORE/refs/CHANNEL",
// "sha256-…"; its target's fingerprint is compared before its digests are verified: another model in its place is
// stale, not damaged); or "org/name[@revision]", which the hub resolver finds. Throws Error(kModel) saying what was
// tried and what to do; Error(kData) for a damaged package; what the hub resolver throws.
ResolvedModel resolve_model(const std::string& argument);
// The target of a package as it lies there or where the package refers to. `argument`: what the user called the
// package.
ResolvedModel packaged_target(const ResolvedPackage& package, const std::string& argument);

// Where hub names lead. The program installs one that downloads (net/hub); without it the local cache alone is looked
// at.
using HubResolver = std::function<HubSnapshot(const HubName&)>;
void set_hub_resolver(HubResolver resolver);  // not beside resolve_model in another thread

}  // namespace specdec
