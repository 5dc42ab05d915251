// Builds, signs and verifies packages. A package is an immutable directory with a validated pair, named by the digest
// of its manifest (docs/contract.md, Package).
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
  std::filesystem::path target, draft;                 // Hugging Face directories
  std::filesystem::path report;                        // report.json of validate
  std::vector<std::string> quantise;                   // formats of draft variants to add (deploy/package/quantise.h)
  std::vector<std::filesystem::path> variant_reports;  // report.json of validate for some or all of these variants
  std::filesystem::path store;                         // has packages/, refs/ and tmp/; created if missing
  std::string name;                                    // served model name; "" = the target directory's name
  std::vector<std::string> engines;                    // engines that get a launch file; empty = all
  // The type (export_gguf.h) in which target and draft are also stored as GGUF, for llama.cpp; "" = they are not.
  std::string gguf;
  std::string reference;       // where engines find the target; "" = the target is copied into the package
  std::string parent_channel;  // the package to which this channel points becomes the parent; "" = no parent
  bool allow_failed = false;
  bool is_public = false;  // true: the manifest says that anyone may read the package
};

// The result of a package command. exit_code is 0 on success, 5 if report, draft or package belong to another target.
// If the report's verdict is not pass, exit_code is the verdict's exit code. An exit_code other than 0 is a normal
// return; no exception is thrown.
struct PackageOutcome {
  int exit_code = 0;
  std::string reason;              // why exit_code is not 0, as one line; "" if exit_code is 0
  std::optional<Verdict> verdict;  // verdict of the report that prevents the packaging
  std::string digest;              // digest of the package; "" if none was made
  std::filesystem::path path;
  std::string signer;     // name of the key, if a signature was made or checked
  bool is_new = false;    // false: the store had the same package already
  Json gate = nullptr;    // GateSummary of the report on which packaging was decided; null if none was read
  std::string gate_line;  // `gate` as one line of text
  std::string name;       // the served model's name in the launch files
  std::string next;       // the command that the user should run next
  ChannelRecord channel;  // the channel that named the package to copy; empty if no channel did
  std::vector<std::string> warnings;
  // A lock on the package. While it exists, garbage collection keeps the package, even if no channel points to it yet.
  std::shared_ptr<const DirectoryLock> hold;
};

// Copies the draft and, if `reference` is empty, the target. Writes launch files and the manifest, and publishes
// STORE/packages/sha256-<digest>. If the store has a package with the same content (apart from `created` and `parent`),
// returns that package. `now`: unix seconds. Throws Error(kData | kModel | kIo | kUsage), and Error(kNetwork), the kind
// that means "try again", if a signal stops it.
PackageOutcome create_package(const PackageOptions& options, int64_t now, const ProgressFn& progress);

// Signs the manifest with a minisign secret key, and replaces an older signature atomically. Throws Error(kData) if
// `argument` is no package, and what sign_minisign throws.
PackageOutcome sign_package(const std::string& argument, const std::filesystem::path& secret_key,
                            const std::string& passphrase, int64_t now);

// Verifies a package. First compares fingerprints: exit code 5 means that the target in the package was replaced. Then
// checks that exactly the listed files exist, with their sizes and digests, and that no file is a link. Error(kData)
// names the first damaged file. `argument` is as in resolve_package; throws Error(kData) if it names no package. `keys`
// is a file of public keys, one of which must have signed the package; "" stands for the keys that the package's store
// requires, if any.
PackageOutcome verify_package(const std::string& argument, const std::filesystem::path& keys = {});

}  // namespace specdec::deploy
