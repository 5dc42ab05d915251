// `specdec package` push | pull: packages between stores, which are directories or lie in S3 or at a hub.
#include "cli/package_transfer.h"

#include <cstdio>

#include "base/schema/package_manifest.h"
#include "deploy/package/store.h"

namespace specdec::cli {

namespace {

const StoreKind& kind_of(const std::string& store);

deploy::PackageOutcome push_to_directory(const Global& global, const PackageFlags& flags, PackageResult& result) {
  deploy::PackageOutcome outcome = kind_of(flags.package).pull(global, flags);
  if (!flags.channel.empty()) {
    deploy::ChannelSigner signer = channel_signer(flags);
    signer.record = outcome.channel;
    const auto change = deploy::promote(flags.store, outcome.digest, flags.channel, flags.why, result.now(), signer);
    result["channel"] = {
        {"name", change.channel}, {"from", change.from}, {"to", change.to}, {"changed", change.changed}};
  }
  return outcome;
}

deploy::PackageOutcome pull_from_directory(const Global& global, const PackageFlags& flags) {
  return deploy::copy_package(flags.package, flags.store, make_progress(global));
}

const StoreKind kDirectoryStore = {"", push_to_directory, pull_from_directory};

const StoreKind& kind_of(const std::string& store) {
  for (const StoreKind* kind : {&kS3Store, &kHubStore})
    if (store.starts_with(kind->scheme)) return *kind;
  if (store.find("://") != std::string::npos)
    throw Error(ErrorKind::kUsage, store + ": expected a directory, s3://bucket/prefix or hf://org/name");
  return kDirectoryStore;
}

// Both bring PACKAGE into a store: the one is said from where it was made, the other from where it is needed.
int run_transfer(const Global& global, PackageFlags flags, const char* action) {
  if (flags.why.empty()) flags.why = action;
  if (!flags.channel.empty()) require_channel_name(flags.channel);
  const StoreKind &from = kind_of(flags.package), &to = kind_of(flags.store);
  if (&from != &kDirectoryStore && &to != &kDirectoryStore)
    throw Error(ErrorKind::kUsage,
                std::string("from ") + from.scheme + " to " + to.scheme + ": pull into a directory first");
  if (flags.make_public && &to != &kHubStore)
    throw Error(ErrorKind::kUsage, "--public: makes a repository at a hub: expected --store hf://org/name");
  PackageResult result(action);
  const deploy::PackageOutcome outcome = to.push(global, flags, result);
  result["digest"] = outcome.digest;
  result["path"] = outcome.path.string();
  result["is_new"] = outcome.is_new;
  result["signer"] = outcome.signer;
  result["verdict"] = outcome.is_new ? "changed" : "unchanged";
  result["inputs"] = {{"package", flags.package}, {"store", flags.store}};
  if (global.json) {
    result.print();
    return 0;
  }
  std::printf("%s sha256-%s\n  %s\n", outcome.is_new ? "copied" : "unchanged", outcome.digest.c_str(),
              outcome.path.c_str());
  if (!flags.channel.empty()) std::printf("  channel %s names it\n", flags.channel.c_str());
  return 0;
}

}  // namespace

void add_transfer_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select) {
  CLI::App* push = app.add_subcommand("push", "Copies a package into another store, checked; continues what broke off");
  CLI::App* pull = app.add_subcommand("pull", "The same, said from the other end");
  for (CLI::App* command : {push, pull}) {
    command
        ->add_option(
            "package", flags.package,
            "PACKAGE directory, STORE:CHANNEL or STORE:sha256-…; STORE may be s3://bucket/prefix or hf://org/name")
        ->required();
    command
        ->add_option("--store", flags.store,
                     "Store that gets it: a directory, made where missing, s3://bucket/prefix or hf://org/name")
        ->required();
    command->add_option("--channel", flags.channel,
                        "Channel there that names it afterwards; at a hub a branch, main without this");
    command->add_option("--why", flags.why, "Reason, kept in a directory's channel log and in a hub's commit");
    add_key_flags(*command, flags,
                  "Signs the channel there with this secret key of minisign; without it the signature that the channel "
                  "of this name has comes along");
    command->footer(
        "S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL_S3. Hub: "
        "HF_TOKEN, HF_ENDPOINT.\n"
        "  specdec package push store:production --store s3://bucket/drafts --channel production\n"
        "  specdec package pull s3://bucket/drafts:production --store store --channel production\n"
        "  specdec package push store:production --store hf://org/draft --channel production\n"
        "  specdec package pull hf://org/draft:production --store store --channel production");
  }
  push->add_flag("--public", flags.make_public, "Where the hub has no such repository: make it public, not private");
  push->add_flag("--i-understand", flags.understood, "Publish a package marked private where anyone can read it");
  push->callback(
      [select] { select([](const Global& g, const PackageFlags& f) { return run_transfer(g, f, "push"); }); });
  pull->callback(
      [select] { select([](const Global& g, const PackageFlags& f) { return run_transfer(g, f, "pull"); }); });
}

}  // namespace specdec::cli
