// Copies packages from one store to another (push and pull). All received bytes are checked against the manifest before
// the package is renamed to its final name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "deploy/package/package.h"

namespace specdec::deploy {

// A source from which a package is read.
class PackageSource {
 public:
  virtual ~PackageSource() = default;
  virtual std::string name() const = 0;
  // Returns the content of a small file of the package; "" if there is no such file. Throws Error(kData) if the file is
  // larger than max_bytes.
  virtual std::string text(const std::string& path, size_t max_bytes) = 0;
  // Passes the bytes of a file from offset `begin` on to `take`, in order. Throws what reading throws; the bytes that
  // `take` has received by then are valid.
  virtual void read(const std::string& path, uint64_t begin, const std::function<void(std::string_view)>& take) = 0;
};

// Copies the package into the store (created if missing) under its digest. Checks each file as it is written to
// STORE/tmp, writes the manifest last, and finally renames the directory. Continues an interrupted copy at the byte
// where it stopped. Copies nothing if the store has the complete package already. A store with trusted.pub requires a
// signature. Throws Error(kData) if the source is no package, has a changed file, or has another digest than `digest`
// ("" allows any digest). Throws Error(kNetwork), the kind that means "try again", if another process copies the same
// package or a signal stops the copy.
PackageOutcome transfer_package(PackageSource& source, const std::filesystem::path& store, const std::string& digest,
                                const ProgressFn& progress);

// A destination, other than a directory, to which a package is written.
class PackageSink {
 public:
  virtual ~PackageSink() = default;
  virtual std::string name() const = 0;
  // Called first. Returns whether anyone can read the destination, as far as that can be known. Writes nothing.
  virtual bool is_public() { return false; }
  // Prepares the upload of these files of the package, including signature and manifest. Returns true if the
  // destination already has all of them, published.
  virtual bool begin(const ResolvedPackage& package, const std::vector<PackagedFile>& files) = 0;
  virtual bool has(const PackagedFile& file) = 0;  // whether the destination has the whole file
  virtual void put(const PackagedFile& file, const std::filesystem::path& from,
                   const std::function<void(uint64_t bytes)>& progress) = 0;
  // Writes the manifest, the last file, which publishes the package. Returns false and changes nothing if a manifest
  // exists already.
  virtual bool put_new(const PackagedFile& manifest, const std::filesystem::path& from) = 0;
};
// Uploads every file that the destination lacks, including the signature, and last the manifest, which publishes the
// package. If two uploads compete, the first manifest wins. Verifies the package's digests before sending anything.
// Unless `may_be_read`, throws Error(kUsage) if anyone can read the destination and the package is not marked public;
// nothing is then written.
PackageOutcome upload_package(const std::string& argument, PackageSink& sink, bool may_be_read,
                              const ProgressFn& progress);

// Copies a package from a directory or a store with transfer_package(), and locks it against removal during the copy.
// `argument` is as in resolve_package.
PackageOutcome copy_package(const std::string& argument, const std::filesystem::path& store,
                            const ProgressFn& progress);

}  // namespace specdec::deploy
