// manifest.json of a package (schema "specdec.package/1"). A package is an immutable directory named after this file's
// sha256.
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
  std::string path;  // relative to the package, with '/' between names and without ".."
  uint64_t size = 0;
  std::string sha256;
};

// A copy of the draft in fewer bits, stored beside the original.
struct DraftVariant {
  std::string format;  // "fp8" or "int8"; the directory is "draft-" followed by this
  Fingerprint fingerprint;
  double relative_error = 0;  // root mean square error of the variant's matrices, relative to the original's
  Json report;                // its own validation report, null if the gate has not measured it
  std::string directory() const { return "draft-" + format; }
};

struct PackageManifest {
  static constexpr int kVersion = 1;
  std::vector<PackagedFile> files;  // all files but the manifest and its signature, sorted by path
  Fingerprint target, draft;
  std::string draft_kind, tokenizer_digest;
  std::string target_reference;        // path or hub name if the package does not contain the target, else ""
  Json report;                         // the whole validation report
  std::vector<DraftVariant> variants;  // sorted by format
  bool allowed_failed = false;
  bool is_public = false;            // "visibility": the package's maker declared that anyone may read it
  Json provenance = Json::object();  // the draft's specdec.json
  std::string parent;                // digest of the package that this package replaces, "" for the first
  std::string created, tool_version;

  void validate(const std::string& where) const;
};
void visit_fields(Fields& f, PackageManifest& manifest);
Json to_json(const PackageManifest& manifest);
PackageManifest package_manifest_from_json(const Json& object, const std::string& where);
// Throws Error(kData) if the file is missing, malformed or of an unknown version.
PackageManifest read_manifest(const std::filesystem::path& package);

// A package argument resolved to directories.
struct ResolvedPackage {
  // root: the directory that was opened and is locked, without links in its path
  std::filesystem::path root, target, draft;
  std::string digest, manifest_text;  // both from one reading of manifest.json
  // The stores through whose packages/ directory the package was reached. The trusted.pub of each store applies to the
  // package.
  std::vector<std::filesystem::path> stores;
  PackageManifest manifest;
  ChannelRecord channel;                      // the channel that the argument named, else empty
  std::shared_ptr<const DirectoryLock> hold;  // while a copy of `hold` exists, `package gc` keeps the package
};
// Checks that the package has exactly the listed files, that they are regular and have the listed sizes, and, if
// `verify_digests`, the listed digests. Throws Error(kData) naming the first file that is missing, extra, a link or
// changed. After reading the files, call require_unchanged() on the result. If `target_too` is false, files below
// target/ are skipped, because the user has allowed another model there.
std::shared_ptr<const VerifiedFiles> verify_files(const std::filesystem::path& package, const PackageManifest& manifest,
                                                  bool verify_digests, bool target_too = true);
// Checks the digests of all files of at most `max_bytes`. Used before reading small files of a package that has not
// been checked as a whole yet.
std::shared_ptr<const VerifiedFiles> verify_small_files(const ResolvedPackage& package, uint64_t max_bytes);
// Returns the digest of manifest.json, which is the package's name without "sha256-".
std::string package_digest(const std::filesystem::path& package);
// Returns the digest in STORE/refs/CHANNEL, "" if there is no such channel. Throws Error(kData) for any other content.
// Does not check the signature.
std::string read_channel(const std::filesystem::path& store, const std::string& channel);
// Requires 1 to 64 letters, digits, '.', '_' and '-', not starting with '.' or "sha256-", and not ending in .log or
// .partial. So the name is a safe file name and not a digest. Throws Error(kUsage).
void require_channel_name(const std::string& channel);
// Finds a package by its directory, a store's channel ("STORE/refs/NAME" or "STORE:NAME"), or a digest inside a store
// ("STORE:sha256-<at least 8 digits>"). Returns nothing if `argument` is not a package. Of the package's files, only
// the manifest is read. If the channel is moved meanwhile, returns the old or the new package, complete and locked.
// Throws Error(kData) if the package is damaged, if its digest is not the one in its directory's name or in the
// channel, or if require_trusted_channel refuses the channel; Error(kNetwork), which means "try again", while the
// package is being removed.
std::optional<ResolvedPackage> locate_package(const std::string& argument);
// The file that holds minisign's signature of the manifest, beside the manifest.
inline constexpr const char* kSignatureFile = "manifest.json.minisig";
// Throws Error(kData) unless the package is signed as its stores demand. A store with a trusted.pub (public keys of
// minisign) demands that one of these keys has signed each package that is in the store or reached through it. Other
// packages, including copies outside the store, need no signature.
void require_trusted(const ResolvedPackage& package);
// Calls locate_package, then require_trusted and verify_files.
std::optional<ResolvedPackage> resolve_package(const std::string& argument, bool verify_digests);

}  // namespace specdec
