// Resolves MODEL arguments: finds the directory of the model that a user named.
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
  std::filesystem::path directory;  // a Hugging Face directory; for a package, its target
  std::filesystem::path draft;      // the package's draft; empty for a model that is not a package
  std::string package_digest;       // 64 hex digits for a package, else empty
  // Why the target is not the model that the package was validated with. "" if the target is that model, or if no
  // package was given.
  std::string stale_reason;
  // The commit if the model, or the package's target, was given by hub name; else empty.
  std::string hub_commit;
  std::shared_ptr<const DirectoryLock> hold = {};  // keeps a package from being removed; null for other models
  // The package's verified files; the target's files are left out if `stale_reason` is set. Call
  // verified->require_unchanged() after loading. Null if the model is not a package.
  std::shared_ptr<const VerifiedFiles> verified = {};
};
// Resolves `argument`, which is one of:
// * a local directory with config.json;
// * a package (directory, "STORE:CHANNEL", "STORE/refs/CHANNEL", "sha256-…"). The target's fingerprint is compared
//   before the package's digests are verified, so a package whose target was replaced by another model is stale, not
//   damaged;
// * "org/name[@revision]", which the hub resolver finds.
// A model whose config.json is that of an encoder (BERT) is refused. Throws Error(kModel) saying what was tried and
// what to do, Error(kData) for a damaged package, and the errors of the hub resolver.
ResolvedModel resolve_model(const std::string& argument);
// Returns the target of a package: the model inside the package, or the model that the package refers to. `argument` is
// the user's name for the package.
ResolvedModel packaged_target(const ResolvedPackage& package, const std::string& argument);

// Finds the model for a hub name. The program installs a resolver that downloads models (net/hub); without it, only the
// local cache is searched.
using HubResolver = std::function<HubSnapshot(const HubName&)>;
void set_hub_resolver(HubResolver resolver);  // must not be called while another thread calls resolve_model

}  // namespace specdec
