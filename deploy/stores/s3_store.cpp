#include "deploy/stores/s3_store.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/schema/package_manifest.h"
#include "base/sha256.h"
#include "deploy/package/transfer.h"
#include "net/s3.h"

namespace specdec::deploy {

namespace {

std::string directory_of(const std::string& digest) { return "packages/sha256-" + digest + "/"; }

// Reads or writes the package in packages/sha256-…/ of a store in S3.
class S3Package : public PackageSource, public PackageSink {
 public:
  explicit S3Package(net::S3Client& s3, const std::string& digest = "") : s3_(s3), at_(directory_of(digest)) {}
  std::string name() const override { return s3_.name(at_.substr(0, at_.size() - 1)); }
  std::string text(const std::string& path, size_t max_bytes) override { return s3_.get(at_ + path, max_bytes); }
  void read(const std::string& path, uint64_t begin, const std::function<void(std::string_view)>& take) override {
    s3_.read(at_ + path, begin, take);
  }
  bool begin(const ResolvedPackage& package, const std::vector<PackagedFile>&) override {
    at_ = directory_of(package.digest);
    return false;
  }
  // Returns false for the signature, so that it is always sent: another signature may have the same size.
  bool has(const PackagedFile& file) override {
    return file.path != kSignatureFile && s3_.size(at_ + file.path) == file.size;
  }
  void put(const PackagedFile& file, const fs::path& from, const std::function<void(uint64_t)>& progress) override {
    s3_.put_file(at_ + file.path, from, progress);
  }
  bool put_new(const PackagedFile& manifest, const fs::path& from) override {
    return s3_.put(at_ + manifest.path, read_file(from), /*if_absent=*/true);
  }

 private:
  net::S3Client& s3_;
  std::string at_;
};

ChannelRecord read_record(net::S3Client& s3, const std::string& channel) {
  const std::string text = s3.get("refs/" + channel, 4096);
  return text.empty() ? ChannelRecord{} : parse_channel(text, channel, s3.name("refs/" + channel));
}

// Returns the channel's new record. With a key, the record is signed here. Otherwise it is the signed record that comes
// with the package, or for an unsigned channel only the digest. A signed channel stays signed, and its number never
// falls.
ChannelRecord record_for(net::S3Client& s3, const PackageTransfer& t, const PackageOutcome& outcome) {
  const ChannelRecord& carried = outcome.channel;
  const int64_t there = read_record(s3, t.channel).number;
  const std::string channel = s3.name("refs/" + t.channel);
  if (t.has_key) return sign_channel(t.channel, outcome.digest, std::max(carried.number, there) + 1, t.now, t.signer());
  if (carried.number > 0 && carried.statement == channel_statement(t.channel, outcome.digest, carried.number)) {
    if (carried.number >= there) return carried;
    throw Error(ErrorKind::kData, channel + ": is number " + std::to_string(there) +
                                      " there, and the record that comes with the package is number " +
                                      std::to_string(carried.number) + ": an older state of the channel");
  }
  if (there > 0)
    throw Error(ErrorKind::kUsage, "--key: " + channel + " is signed (number " + std::to_string(there) +
                                       "): expected the secret key that signs " + t.channel);
  return {outcome.digest, 0, "", ""};
}

class S3Store final : public PackageStore {
 public:
  const char* scheme() const override { return "s3://"; }
  TransferOutcome push(const PackageTransfer& t, const ProgressFn& progress) const override {
    net::S3Client s3(net::parse_s3(t.store), net::s3_options_from_environment());
    S3Package sink(s3);
    TransferOutcome out{upload_package(t.package, sink, t.understood, progress)};
    out.package.path = sink.name();
    if (!t.channel.empty()) s3.put("refs/" + t.channel, to_text(record_for(s3, t, out.package)), false);
    return out;
  }

  // Pulls "s3://bucket/prefix:CHANNEL" or "s3://bucket/prefix:sha256-<64 digits>".
  PackageOutcome pull(const PackageTransfer& t, const ProgressFn& progress) const override {
    const size_t colon = t.package.rfind(':');
    if (colon <= 4)
      throw Error(ErrorKind::kUsage, t.package + ": expected s3://bucket[/prefix]:CHANNEL or :sha256-<digest>");
    const std::string store = t.package.substr(0, colon), name = t.package.substr(colon + 1);
    net::S3Client s3(net::parse_s3(store), net::s3_options_from_environment());
    std::string digest;
    ChannelRecord record;
    if (name.starts_with("sha256-")) {
      digest = name.substr(7);
      if (!is_sha256_hex(digest))
        throw Error(ErrorKind::kUsage, t.package + ": expected all 64 digits of the package's digest");
    } else {
      require_channel_name(name);
      record = read_record(s3, name);
      digest = record.digest;
      if (digest.empty()) throw Error(ErrorKind::kData, store + ": no channel '" + name + "'");
    }
    S3Package source(s3, digest);
    PackageOutcome outcome = transfer_package(source, t.store, digest, progress);
    outcome.channel = record;
    return outcome;
  }
};

}  // namespace

const PackageStore& s3_store() {
  static const S3Store store;
  return store;
}

}  // namespace specdec::deploy
