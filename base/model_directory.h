// MODEL arguments: where on disk the model lies that a user named.
#pragma once

#include <filesystem>
#include <string>

namespace specdec {

struct ResolvedModel {
  std::filesystem::path directory;   // a Hugging Face directory; of a package: its target
  std::filesystem::path draft;       // the package's draft, empty for anything else
  std::string package_digest;        // 64 hex digits, empty unless a package
  std::string stale_reason;          // of a package whose target is no longer the one it was validated with: why; else empty
};
// `argument`: a local directory with config.json; a package (directory, "STORE:CHANNEL", "STORE/refs/CHANNEL", "sha256-…"; its
// target's fingerprint is compared before its digests are verified: another model in its place is stale, not damaged); or "org/name[@revision]" looked up in the local Hugging Face cache (HF_HUB_CACHE, HF_HOME,
// XDG_CACHE_HOME), never on the network. Throws Error(kModel) saying what was tried and what to do; Error(kData) for a
// damaged package.
ResolvedModel resolve_model(const std::string& argument);

}  // namespace specdec
