// manifest.json of a package (schema "specdec.package/1"): an immutable directory named after this file's sha256.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/schema/package_trust.h"
#include "base/schema/validation_report.h"

namespace specdec {

struct PackagedFile {
  std::string path;  // relative, '/' separated, no "..", no absolute
  uint64_t size = 0;
  std::string sha256;
};

// The draft in fewer bits, beside it.
struct DraftVariant {
  std::string format;  // "fp8", "int8": the directory is "draft-" and this
  Fingerprint fingerprint;
  double relative_error = 0;  // of its matrices, root mean square
  Json report;                // its own validation report, null where the gate has not measured it
  std::string directory() const { return "draft-" + format; }
};

struct PackageManifest {
  static constexpr int kVersion = 1;
  std::vector<PackagedFile> files;  // every file but the manifest, sorted by path
  Fingerprint target, draft;
  std::string draft_kind, tokenizer_digest;
  std::string target_reference;        // path or hub name when target/ is not inside, else ""
  Json report;                         // the validation report, whole
  std::vector<DraftVariant> variants;  // sorted by format
  bool allowed_failed = false;
  bool is_public = false;  // "visibility": whoever made it says that anyone may read it
  Json provenance;         // the draft's specdec.json
  std::string parent;      // digest of the package it replaces, "" first
  std::string created, tool_version;

  void validate(const std::string& where) const;
};
Json to_json(const PackageManifest& manifest);
PackageManifest package_manifest_from_json(const Json& object, const std::string& where);
// Error(kData): missing, malformed, unknown version
PackageManifest read_manifest(const std::filesystem::path& package);

// A MODEL argument resolved to directories: a package gives both, a plain directory one.
struct ResolvedPackage {
  std::filesystem::path root, target,
      draft;                          // root: where the directory lies that was opened and is held, without links
  std::string digest, manifest_text;  // of one reading of manifest.json
  std::vector<std::filesystem::path> stores;  // through whose packages/ it was reached: their trusted.pub holds for it
  PackageManifest manifest;
  ChannelRecord channel;                      // where the argument named one; else empty
  std::shared_ptr<const DirectoryLock> hold;  // while a copy lives, `package gc` leaves the package where it is
};
// Exactly the listed files, regular and of the listed sizes, with their digests if `verify_digests`. Throws
// Error(kData) naming the first file that is missing, extra, a link or changed. Whoever then reads them asks the result
// afterwards whether they are still the files that were checked. Without `target_too` what lies below target/ is passed
// over: another model stands there, and the user has allowed that.
std::shared_ptr<const VerifiedFiles> verify_files(const std::filesystem::path& package, const PackageManifest& manifest,
                                                  bool verify_digests, bool target_too = true);
// The same of the files of at most `max_bytes` alone, with their digests: what is read before all of it has been
// checked.
std::shared_ptr<const VerifiedFiles> verify_small_files(const ResolvedPackage& package, uint64_t max_bytes);
// Digest of manifest.json: the package's name without "sha256-".
std::string package_digest(const std::filesystem::path& package);
// The digest that STORE/refs/CHANNEL holds, "" if there is no such channel. Throws Error(kData) for anything else in
// it. Its signature is not looked at.
std::string read_channel(const std::filesystem::path& store, const std::string& channel);
// Letters, digits, '.', '_' and '-', at most 64, not starting with '.', not ending in .log or .partial and not a
// digest: fit for a file name. Throws Error(kUsage).
void require_channel_name(const std::string& channel);
// `argument` is a package directory, a store's channel ("STORE/refs/NAME" or "STORE:NAME"), or a digest inside a store
// ("STORE:sha256-<at least 8 digits>"). Nothing if it is not a package. Reads the manifest only. A channel that moves
// meanwhile gives the old package or the new one, whole and held. Throws Error(kData) when damaged, for a package that
// is not the one its name or its channel promises or for a channel that require_trusted_channel refuses,
// Error(kNetwork) while the package is being removed.
std::optional<ResolvedPackage> locate_package(const std::string& argument);
// Beside the manifest: its signature by minisign.
inline constexpr const char* kSignatureFile = "manifest.json.minisig";
// A package that lies in a store with a trusted.pub (public keys of minisign), or was reached through one, must carry a
// signature of one of them: Error(kData) where it does not. Packages elsewhere, copies too, and stores without the file
// demand nothing.
void require_trusted(const ResolvedPackage& package);
// locate_package, then require_trusted and verify_files.
std::optional<ResolvedPackage> resolve_package(const std::string& argument, bool verify_digests);

}  // namespace specdec
