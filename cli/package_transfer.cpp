// `specdec package` push | pull: copies packages between stores, which are directories, S3 buckets or repositories of a
// hub.
#include <cstdio>

#include "cli/package.h"
#include "cli/results.h"
#include "deploy/stores/package_store.h"

namespace specdec::cli {

namespace {

struct TransferResult : PackageResult {
  bool pull = false;
  deploy::TransferOutcome done;
};
void visit_fields(Fields& f, TransferResult& r) {
  f.type(r.pull ? "PackagePullResult" : "PackagePushResult", "The package that was copied.");
  visit_package_head(f, r, r.pull ? "pull" : "push", {"changed", "unchanged"});
  f("digest", r.done.package.digest);
  std::string path = r.done.package.path.string();
  f("path", path);
  f("is_new", r.done.package.is_new);
  f("signer", r.done.package.signer);
  f(if_any("channel"), r.done.change);
  f(if_any("commit"), r.done.commit);
}
TransferResult transfer_result(bool pull) {
  TransferResult result;
  result.pull = pull;
  return result;
}

// Runs push or pull, as `action` says. Both copy PACKAGE into a store. Push is run on the machine that made the
// package, pull on the machine that needs it.
int run_transfer(const Global& global, const PackageFlags& flags, const char* action) {
  TransferResult result = transfer_result(action == std::string("pull"));
  result.done = deploy::transfer({.package = flags.package,
                                  .store = flags.store,
                                  .channel = flags.channel,
                                  .why = flags.why.empty() ? action : flags.why,
                                  .signer = [&] { return channel_signer(flags); },
                                  .has_key = !flags.key.empty(),
                                  .make_public = flags.make_public,
                                  .understood = flags.understood,
                                  .now = result.now()},
                                 make_progress(global));
  const deploy::PackageOutcome& outcome = result.done.package;
  result.head.verdict = outcome.is_new ? "changed" : "unchanged";
  result.inputs = {{"package", flags.package}, {"store", flags.store}};
  if (global.json) {
    print(result);
    return 0;
  }
  std::printf("%s sha256-%s\n  %s\n", outcome.is_new ? "copied" : "unchanged", outcome.digest.c_str(),
              outcome.path.c_str());
  if (!flags.channel.empty()) std::printf("  channel %s names it\n", flags.channel.c_str());
  return 0;
}

}  // namespace

void describe_transfer_results(Results& results) {
  results.add(transfer_result(false), {.commands = {"package push"}});
  results.add(transfer_result(true), {.commands = {"package pull"}});
}

void add_transfer_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select) {
  CLI::App* push =
      app.add_subcommand("push", "Copies a package into another store and checks it; resumes an interrupted copy");
  CLI::App* pull =
      app.add_subcommand("pull", "Copies a package from another store and checks it; resumes an interrupted copy");
  for (CLI::App* command : {push, pull}) {
    command
        ->add_option(
            "package", flags.package,
            "PACKAGE directory, STORE:CHANNEL or STORE:sha256-…; STORE may be s3://bucket/prefix or hf://org/name")
        ->type_name("PACKAGE|STORE:CHANNEL")
        ->required();
    command
        ->add_option("--store", flags.store,
                     "Store that receives the package: a directory, created if it is missing, s3://bucket/prefix or "
                     "hf://org/name")
        ->type_name("STORE")
        ->required();
    command
        ->add_option("--channel", flags.channel,
                     "Channel there that names the package afterwards; at a hub a branch, default: main")
        ->type_name("NAME");
    command->add_option("--why", flags.why, "Reason, kept in a directory's channel log and in a hub's commit")
        ->type_name("TEXT");
    add_key_flags(*command, flags,
                  "Signs the channel there with this secret key of minisign; without it the signature that the channel "
                  "of this name has comes along");
    command->footer(
        "S3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, AWS_ENDPOINT_URL_S3. Hub: "
        "HF_TOKEN, HF_ENDPOINT.\nExamples:\n"
        "  specdec package push store:production --store s3://bucket/drafts --channel production\n"
        "  specdec package pull s3://bucket/drafts:production --store store --channel production\n"
        "  specdec package push store:production --store hf://org/draft --channel production\n"
        "  specdec package pull hf://org/draft:production --store store --channel production");
  }
  push->add_flag("--public", flags.make_public,
                 "If the hub does not have the repository: create it as public, not private");
  push->add_flag("--i-understand", flags.understood, "Publish a package marked private where anyone can read it");
  push->callback(
      [select] { select([](const Global& g, const PackageFlags& f) { return run_transfer(g, f, "push"); }); });
  pull->callback(
      [select] { select([](const Global& g, const PackageFlags& f) { return run_transfer(g, f, "pull"); }); });
}

}  // namespace specdec::cli
