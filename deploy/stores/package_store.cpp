#include "deploy/stores/package_store.h"

#include "base/error.h"
#include "deploy/package/store.h"
#include "deploy/package/transfer.h"
#include "deploy/stores/hub_store.h"
#include "deploy/stores/s3_store.h"

namespace specdec::deploy {

namespace {

const PackageStore& store_of(const std::string& name);

class DirectoryStore final : public PackageStore {
 public:
  const char* scheme() const override { return ""; }
  TransferOutcome push(const PackageTransfer& t, const ProgressFn& progress) const override {
    TransferOutcome out{store_of(t.package).pull(t, progress)};
    if (!t.channel.empty()) {
      ChannelSigner signer = t.signer();
      signer.record = out.package.channel;
      out.change = promote(t.store, out.package.digest, t.channel, {t.why, t.now}, signer);
    }
    return out;
  }
  PackageOutcome pull(const PackageTransfer& t, const ProgressFn& progress) const override {
    return copy_package(t.package, t.store, progress);
  }
};

const PackageStore& directory_store() {
  static const DirectoryStore store;
  return store;
}

const PackageStore& store_of(const std::string& name) {
  for (const PackageStore* store : {&s3_store(), &hub_store()})
    if (name.starts_with(store->scheme())) return *store;
  if (name.find("://") != std::string::npos)
    throw Error(ErrorKind::kUsage, name + ": expected a directory, s3://bucket/prefix or hf://org/name");
  return directory_store();
}

}  // namespace

TransferOutcome transfer(const PackageTransfer& t, const ProgressFn& progress) {
  if (!t.channel.empty()) require_channel_name(t.channel);
  const PackageStore &from = store_of(t.package), &to = store_of(t.store);
  if (&from != &directory_store() && &to != &directory_store())
    throw Error(ErrorKind::kUsage,
                std::string("from ") + from.scheme() + " to " + to.scheme() + ": pull into a directory first");
  if (t.make_public && &to != &hub_store())
    throw Error(ErrorKind::kUsage, "--public: makes a repository at a hub: expected --store hf://org/name");
  if (&to == &directory_store()) check_store_directory(t.store);
  return to.push(t, progress);
}

}  // namespace specdec::deploy
