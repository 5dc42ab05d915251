// Packages from one store to another: push and pull. What arrives is checked against the manifest before it gets its
// name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "deploy/package/package.h"

namespace specdec::deploy {

// Where a package is read from.
class PackageSource {
 public:
  virtual ~PackageSource() = default;
  virtual std::string name() const = 0;
  // A small file of the package, "" if it is not there. Throws Error(kData) where it is larger than that.
  virtual std::string text(const std::string& path, size_t max_bytes) = 0;
  // The bytes of a file from `begin` on, in order. Throws what reading throws; what came is kept.
  virtual void read(const std::string& path, uint64_t begin, const std::function<void(std::string_view)>& take) = 0;
};

// Copies the package into the store (made where missing) under its digest: into STORE/tmp, each file checked as it is
// written, the manifest last, one rename. What an earlier try left is continued, byte for byte. A store with
// trusted.pub demands the signature. Nothing is copied where the package is there and whole. Throws Error(kData): not a
// package, another digest than `digest` ("" = any), a changed file; Error(kNetwork): another process is at the same
// package, stopped by a signal.
PackageOutcome transfer_package(PackageSource& source, const std::filesystem::path& store, const std::string& digest,
                                const ProgressFn& progress);

// Where a package is written to that is no directory.
class PackageSink {
 public:
  virtual ~PackageSink() = default;
  virtual std::string name() const = 0;
  // Asked first: anyone may read what lies there, as far as that can be known. Writes nothing.
  virtual bool is_public() { return false; }
  // Makes ready for these files of the package, signature and manifest among them. True: all of it is published there.
  virtual bool begin(const ResolvedPackage& package, const std::vector<PackagedFile>& files) = 0;
  virtual bool has(const PackagedFile& file) = 0;  // whole: files appear at once or not at all
  virtual void put(const PackagedFile& file, const std::filesystem::path& from,
                   const std::function<void(uint64_t bytes)>& progress) = 0;
  // The last file, with which the package is published. False where it is there already, and left as it is.
  virtual bool put_new(const PackagedFile& manifest, const std::filesystem::path& from) = 0;
};
// Every file that is not there yet, the signature among them, the manifest last: with it the package is published, by
// whoever is first. The package's digests are verified before anything is sent. A package that is not marked public
// goes to no public place unless `may_be_read`: Error(kUsage), before anything is written there.
PackageOutcome upload_package(const std::string& argument, PackageSink& sink, bool may_be_read,
                              const ProgressFn& progress);

// transfer_package from a package in a directory or a store, held meanwhile. `argument` as in resolve_package.
PackageOutcome copy_package(const std::string& argument, const std::filesystem::path& store,
                            const ProgressFn& progress);

}  // namespace specdec::deploy
