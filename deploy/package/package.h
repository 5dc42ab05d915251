// Packages: a validated pair as one immutable directory, named by the digest of its manifest (docs/contract.md,
// Package).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_lock.h"
#include "base/progress.h"
#include "base/schema/package_manifest.h"
#include "base/verdict.h"

namespace specdec::deploy {

struct PackageOptions {
  std::filesystem::path target, draft;  // Hugging Face directories
  std::filesystem::path report;         // report.json of validate
  std::vector<std::string> quantise;    // variants of the draft that go beside it (deploy/package/quantise.h)
  std::vector<std::filesystem::path> variant_reports;  // report.json of validate for some of them, in any order
  std::filesystem::path store;                         // packages/, refs/ and tmp/ below it; made where missing
  std::string name;                                    // served model name; "" = the target directory's name
  std::vector<std::string> engines;                    // empty = all
  std::string reference;       // where the target is found instead of inside the package; "" = copy it
  std::string parent_channel;  // the package that this channel names becomes the parent; "" = none
  bool allow_failed = false;
  bool is_public = false;  // the manifest says that anyone may read the package
};

// An answer, not an error: exit_code 0 done; 5 report, draft or package belong to another target; a verdict's own code
// where the report is no pass.
struct PackageOutcome {
  int exit_code = 0;
  std::string reason;              // one line where exit_code is not 0
  std::optional<Verdict> verdict;  // of the report that refuses it
  std::string digest;              // of the package, "" where none was made
  std::filesystem::path path;
  std::string signer;     // name of the key, where a signature was made or checked
  bool is_new = false;    // false: the same package was there already
  Json gate = nullptr;    // gate_json() of the report that decided; null where none was read
  std::string gate_line;  // the same in one line
  std::string next;       // the one command to run next
  ChannelRecord channel;  // of what was copied, where it was named by a channel
  std::vector<std::string> warnings;
  // while it lives no garbage collection takes the package, though no channel names it yet
  std::shared_ptr<const DirectoryLock> hold;
};

// Copies both models, writes launch files and the manifest, and publishes STORE/packages/sha256-<digest>. The same
// inputs again give the package that is there (`created` and `parent` apart). `now`: unix seconds. Throws Error(kData |
// kModel | kIo | kUsage).
PackageOutcome create_package(const PackageOptions& options, int64_t now, const ProgressFn& progress);

// Signs the manifest with a secret key of minisign and puts the signature beside it, in one rename; an older one is
// replaced. Throws Error(kData) for what is no package, what sign_minisign throws.
PackageOutcome sign_package(const std::string& argument, const std::filesystem::path& secret_key,
                            const std::string& passphrase, int64_t now);

// Fingerprints first: another target in the package's place is exit code 5. Then exactly the listed files with their
// sizes and digests, no links: Error(kData) names the first that is damaged. `argument` as in resolve_package;
// Error(kData) if it is no package. `keys`: a file of public keys, one of which must have signed it; "" = what its
// store demands.
PackageOutcome verify_package(const std::string& argument, const std::filesystem::path& keys = {});

}  // namespace specdec::deploy
