// `specdec package` push | pull: packages between stores, which are directories or lie in S3.
#include "deploy/package/transfer.h"

#include <cstdio>

#include "base/schema/package_manifest.h"
#include "cli/package.h"
#include "deploy/package/store.h"
#include "net/s3.h"

namespace specdec::cli {

namespace {

bool is_s3(const std::string& text) { return text.rfind("s3://", 0) == 0; }

// packages/sha256-…/ of a store in S3.
class S3Package : public deploy::PackageSource, public deploy::PackageSink {
 public:
  S3Package(net::S3Client& s3, const std::string& digest) : s3_(s3), at_("packages/sha256-" + digest + "/") {}
  std::string name() const override { return s3_.name(at_.substr(0, at_.size() - 1)); }
  std::string text(const std::string& path, size_t max_bytes) override { return s3_.get(at_ + path, max_bytes); }
  void read(const std::string& path, uint64_t begin, const std::function<void(std::string_view)>& take) override { s3_.read(at_ + path, begin, take); }
  bool has(const std::string& path, uint64_t size) override { return s3_.size(at_ + path) == size; }
  void put(const std::string& path, const fs::path& file, const std::function<void(uint64_t)>& progress) override { s3_.put_file(at_ + path, file, progress); }
  bool put_new(const std::string& path, const std::string& text) override { return s3_.put(at_ + path, text, /*if_absent=*/true); }

 private:
  net::S3Client& s3_;
  std::string at_;
};

// "s3://bucket/prefix:channel" or ":sha256-<64 digits>": the store, and the digest.
std::pair<std::string, std::string> split_s3(const std::string& package, net::S3Client* s3) {
  const size_t colon = package.rfind(':');
  if (colon <= 4) throw Error(ErrorKind::kUsage, package + ": expected s3://bucket[/prefix]:CHANNEL or :sha256-<digest>");
  const std::string store = package.substr(0, colon), name = package.substr(colon + 1);
  if (!s3) return {store, ""};
  if (name.rfind("sha256-", 0) == 0) {
    if (!is_sha256_hex(name.substr(7))) throw Error(ErrorKind::kUsage, package + ": expected all 64 digits of the package's digest");
    return {store, name.substr(7)};
  }
  require_channel_name(name);
  std::string digest = s3->get("refs/" + name, 4096);
  while (!digest.empty() && digest.back() == '\n') digest.pop_back();
  if (digest.empty()) throw Error(ErrorKind::kData, store + ": no channel '" + name + "'");
  if (!is_sha256_hex(digest)) throw Error(ErrorKind::kData, s3->name("refs/" + name) + ": damaged channel: expected a package digest");
  return {store, digest};
}

deploy::PackageOutcome push_to_s3(const Global& global, const PackageFlags& flags) {
  net::S3Client s3(net::parse_s3(flags.store), net::s3_options_from_environment());
  const auto package = locate_package(flags.package);
  if (!package) throw Error(ErrorKind::kData, flags.package + ": not a package (no manifest.json)");
  S3Package sink(s3, package->digest);
  deploy::PackageOutcome outcome = deploy::upload_package(package->root.string(), sink, make_progress(global));
  outcome.path = sink.name();
  if (!flags.channel.empty()) s3.put("refs/" + flags.channel, outcome.digest + "\n", false);
  return outcome;
}

deploy::PackageOutcome copy(const Global& global, const PackageFlags& flags) {
  if (!is_s3(flags.package)) return deploy::copy_package(flags.package, flags.store, make_progress(global));
  net::S3Client s3(net::parse_s3(split_s3(flags.package, nullptr).first), net::s3_options_from_environment());
  const std::string digest = split_s3(flags.package, &s3).second;
  S3Package source(s3, digest);
  return deploy::transfer_package(source, flags.store, digest, make_progress(global));
}

// Both bring PACKAGE into a store: the one is said from where it was made, the other from where it is needed.
int run_transfer(const Global& global, const PackageFlags& flags, const char* action) {
  if (!flags.channel.empty()) require_channel_name(flags.channel);
  if (is_s3(flags.package) && is_s3(flags.store)) throw Error(ErrorKind::kUsage, "from S3 to S3: pull into a directory first");
  PackageResult result(action);
  const deploy::PackageOutcome outcome = is_s3(flags.store) ? push_to_s3(global, flags) : copy(global, flags);
  result["digest"] = outcome.digest;
  result["path"] = outcome.path.string();
  result["is_new"] = outcome.is_new;
  result["signer"] = outcome.signer;
  std::string text = std::string(outcome.is_new ? "copied " : "unchanged ") + "sha256-" + outcome.digest + "\n  " + outcome.path.string();
  if (!flags.channel.empty() && !is_s3(flags.store)) {
    const auto change = deploy::promote(flags.store, outcome.digest, flags.channel, flags.why.empty() ? action : flags.why, result.now());
    result["channel"] = {{"name", change.channel}, {"from", change.from}, {"to", change.to}, {"changed", change.changed}};
  }
  if (!flags.channel.empty()) text += "\n  channel " + flags.channel + " names it";
  result["verdict"] = outcome.is_new ? "changed" : "unchanged";
  result["inputs"] = {{"package", flags.package}, {"store", flags.store}};
  if (global.json)
    result.print();
  else
    std::printf("%s\n", text.c_str());
  return 0;
}

}  // namespace

void add_transfer_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select) {
  CLI::App* push = app.add_subcommand("push", "Copies a package into another store, checked; continues what broke off");
  CLI::App* pull = app.add_subcommand("pull", "The same, said from the other end");
  for (CLI::App* command : {push, pull}) {
    command->add_option("package", flags.package, "PACKAGE directory, STORE:CHANNEL or STORE:sha256-…; STORE may be s3://bucket/prefix")->required();
    command->add_option("--store", flags.store, "Store that gets it: a directory, made where missing, or s3://bucket/prefix")->required();
    command->add_option("--channel", flags.channel, "Channel there that names it afterwards");
    command->add_option("--why", flags.why, "Reason, kept in a directory's channel log");
    command->footer("S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL_S3.\n"
                    "  specdec package push store:production --store s3://bucket/drafts --channel production\n"
                    "  specdec package pull s3://bucket/drafts:production --store store --channel production");
  }
  push->callback([select] { select([](const Global& g, const PackageFlags& f) { return run_transfer(g, f, "push"); }); });
  pull->callback([select] { select([](const Global& g, const PackageFlags& f) { return run_transfer(g, f, "pull"); }); });
}

}  // namespace specdec::cli
