// Stores of packages in S3, laid out as in a directory.
#include "base/schema/package_manifest.h"
#include "cli/package_transfer.h"
#include "net/s3.h"

namespace specdec::cli {

namespace {

std::string directory_of(const std::string& digest) { return "packages/sha256-" + digest + "/"; }

// packages/sha256-…/ of a store.
class S3Package : public deploy::PackageSource, public deploy::PackageSink {
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
  // A signature may be another of the same size.
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

// The channel's record as it came with the package, or signed here, or the digest alone. A signed channel stays signed,
// and its number never falls.
ChannelRecord record_for(net::S3Client& s3, const PackageFlags& flags, const deploy::PackageOutcome& outcome,
                         int64_t now) {
  const ChannelRecord& carried = outcome.channel;
  const int64_t there = read_record(s3, flags.channel).number;
  const std::string channel = s3.name("refs/" + flags.channel);
  if (!flags.key.empty())
    return deploy::sign_channel(flags.channel, outcome.digest, std::max(carried.number, there) + 1, now,
                                channel_signer(flags));
  if (carried.number > 0 && carried.statement == channel_statement(flags.channel, outcome.digest, carried.number)) {
    if (carried.number >= there) return carried;
    throw Error(ErrorKind::kData, channel + ": is number " + std::to_string(there) +
                                      " there, and the record that comes with the package is number " +
                                      std::to_string(carried.number) + ": an older state of the channel");
  }
  if (there > 0)
    throw Error(ErrorKind::kUsage, "--key: " + channel + " is signed (number " + std::to_string(there) +
                                       "): expected the secret key that signs " + flags.channel);
  return {outcome.digest, 0, "", ""};
}

deploy::PackageOutcome push_to_s3(const Global& global, const PackageFlags& flags, PackageResult& result) {
  net::S3Client s3(net::parse_s3(flags.store), net::s3_options_from_environment());
  S3Package sink(s3);
  deploy::PackageOutcome outcome = deploy::upload_package(flags.package, sink, flags.understood, make_progress(global));
  outcome.path = sink.name();
  if (!flags.channel.empty())
    s3.put("refs/" + flags.channel, to_text(record_for(s3, flags, outcome, result.now())), false);
  return outcome;
}

// "s3://bucket/prefix:channel" or ":sha256-<64 digits>".
deploy::PackageOutcome pull_from_s3(const Global& global, const PackageFlags& flags) {
  const size_t colon = flags.package.rfind(':');
  if (colon <= 4)
    throw Error(ErrorKind::kUsage, flags.package + ": expected s3://bucket[/prefix]:CHANNEL or :sha256-<digest>");
  const std::string store = flags.package.substr(0, colon), name = flags.package.substr(colon + 1);
  net::S3Client s3(net::parse_s3(store), net::s3_options_from_environment());
  std::string digest;
  ChannelRecord record;
  if (name.starts_with("sha256-")) {
    digest = name.substr(7);
    if (!is_sha256_hex(digest))
      throw Error(ErrorKind::kUsage, flags.package + ": expected all 64 digits of the package's digest");
  } else {
    require_channel_name(name);
    record = read_record(s3, name);
    digest = record.digest;
    if (digest.empty()) throw Error(ErrorKind::kData, store + ": no channel '" + name + "'");
  }
  S3Package source(s3, digest);
  deploy::PackageOutcome outcome = deploy::transfer_package(source, flags.store, digest, make_progress(global));
  outcome.channel = record;
  return outcome;
}

}  // namespace

const StoreKind kS3Store = {"s3://", push_to_s3, pull_from_s3};

}  // namespace specdec::cli
