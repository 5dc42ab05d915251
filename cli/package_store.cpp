// `specdec package` list | promote | rollback | gc | pin | unpin: the commands of the store.
#include <cstdio>

#include "base/format.h"
#include "base/version.h"
#include "cli/package.h"
#include "deploy/package/store.h"

namespace specdec::cli {

PackageResult::PackageResult(const std::string& action) : started_(clock_.seconds()) {
  json_ = {{"schema", "specdec.package_" + action + "/1"},
           {"started", format_utc(clock_.unix_seconds())},
           {"tool_version", kToolVersion}};
}

void PackageResult::print() {
  json_["seconds"] = clock_.seconds() - started_;
  std::printf("%s\n", canonical_json(json_).c_str());
}

namespace {

int run_list(const Global& global, const PackageFlags& flags) {
  PackageResult result("list");
  result["packages"] = Json::array();
  for (const deploy::ListedPackage& p : deploy::list_packages(flags.store)) {
    Json row = {{"digest", p.digest},
                {"path", p.path.string()},
                {"channels", p.channels},
                {"pinned", p.pinned},
                {"problem", p.problem}};
    std::string channels, text = p.problem;
    for (const std::string& c : p.channels) channels += " " + c;
    if (p.pinned) channels += " (pinned)";
    if (p.problem.empty()) {
      const ValidationReport report = validation_report_from_json(p.manifest.report, p.path.string());
      row["created"] = p.manifest.created;
      row["verdict"] = report.verdict;
      row["kind"] = p.manifest.draft_kind;
      row["alpha"] = report.alpha.value;
      row["speedup"] = report.has_speed ? Json(report.speedup.value) : Json();
      row["target"] = p.manifest.target.id;
      row["visibility"] = p.manifest.is_public ? "public" : "private";
      row["parent"] = p.manifest.parent;
      const std::string figures =
          format("%-8s alpha %.3f  speed-up %s", to_string(report.verdict), report.alpha.value,
                 report.has_speed ? std::to_string(report.speedup.value).substr(0, 4).c_str() : "-");
      text = p.manifest.created + "  " + figures + "  " + p.manifest.draft_kind;
    }
    result["packages"].push_back(row);
    if (!global.json)
      std::printf("sha256-%s  %s%s%s\n", p.digest.substr(0, 12).c_str(), text.c_str(), channels.empty() ? "" : "  ←",
                  channels.c_str());
  }
  result["verdict"] = "ok";
  result["inputs"] = {{"store", flags.store}};
  if (global.json) result.print();
  return 0;
}

std::string digest_of(const std::string& package) {
  const std::string digest = package.rfind("sha256-", 0) == 0 ? package.substr(7) : package;
  if (!digest.empty() && !is_sha256_hex(digest))
    throw Error(ErrorKind::kUsage, "--from: expected a package's whole digest, found '" + package + "'");
  return digest;
}

int run_move(const Global& global, const PackageFlags& flags, bool back) {
  PackageResult result(back ? "rollback" : "promote");
  const deploy::ChannelSigner signer = channel_signer(flags);
  const deploy::ChannelChange change =
      back ? deploy::rollback(flags.store, flags.channel, {flags.why, result.now()}, digest_of(flags.from), signer)
           : deploy::promote(flags.store, flags.package, flags.channel, {flags.why, result.now()}, signer);
  result["verdict"] = change.changed ? "changed" : "unchanged";
  result["channel"] = change.channel;
  result["from"] = change.from;
  result["to"] = change.to;
  if (change.number > 0) result["number"] = change.number;
  result["inputs"] = {{"store", flags.store}};
  if (global.json)
    result.print();
  else if (!change.changed)
    std::printf("%s: names sha256-%s already\n", change.channel.c_str(), change.to.substr(0, 12).c_str());
  else
    std::printf("%s: %s -> sha256-%s\n", change.channel.c_str(),
                change.from.empty() ? "(new)" : ("sha256-" + change.from.substr(0, 12)).c_str(),
                change.to.substr(0, 12).c_str());
  return 0;
}

int run_gc(const Global& global, const PackageFlags& flags) {
  PackageResult result("gc");
  const deploy::Collected collected =
      deploy::collect_garbage(flags.store, static_cast<size_t>(flags.keep), flags.dry_run);
  const auto rows = [](const std::vector<deploy::Collected::Entry>& entries) {
    Json rows = Json::array();
    for (const auto& e : entries) rows.push_back({{"digest", e.digest}, {"bytes", e.bytes}, {"why", e.why}});
    return rows;
  };
  result["removed"] = rows(collected.removed);
  result["kept"] = rows(collected.kept);
  result["bytes"] = collected.bytes;
  result["dry_run"] = flags.dry_run;
  result["verdict"] = collected.removed.empty() ? "unchanged" : flags.dry_run ? "would_change" : "changed";
  result["inputs"] = {{"store", flags.store}, {"keep", flags.keep}};
  if (global.json) {
    result.print();
    return 0;
  }
  const char* word = flags.dry_run ? "would remove" : "removed";
  for (const auto& e : collected.kept)
    std::printf("kept     sha256-%s  %s\n", e.digest.substr(0, 12).c_str(), e.why.c_str());
  for (const auto& e : collected.removed)
    std::printf("%s  sha256-%s  %.1f MB\n", word, e.digest.substr(0, 12).c_str(), static_cast<double>(e.bytes) / 1e6);
  std::printf("%s %zu packages, %.1f MB\n", word, collected.removed.size(), static_cast<double>(collected.bytes) / 1e6);
  return 0;
}

int run_pin(const Global& global, const PackageFlags& flags, bool keep) {
  PackageResult result(keep ? "pin" : "unpin");
  const bool changed = keep ? deploy::pin(flags.store, flags.package, {flags.why, result.now()})
                            : deploy::unpin(flags.store, flags.package);
  result["verdict"] = changed ? "changed" : "unchanged";
  result["inputs"] = {{"store", flags.store}, {"package", flags.package}};
  if (global.json)
    result.print();
  else
    std::printf("%s: %s\n", flags.package.c_str(), keep ? "pinned" : "not pinned");
  return 0;
}

void add_store_flag(CLI::App& app, PackageFlags& flags) {
  app.add_option("--store", flags.store, "Directory of packages/ and refs/")->type_name("STORE")->required();
}
void add_channel_flags(CLI::App& app, PackageFlags& flags) {
  app.add_option("--channel", flags.channel, "Name that deployments follow, e.g. production")
      ->type_name("NAME")
      ->required();
  app.add_option("--why", flags.why, "Reason, kept in the channel's log")->type_name("TEXT");
  add_key_flags(app, flags,
                "Signs the channel with this secret key of minisign: a store with a trusted.pub demands it");
}

}  // namespace

void add_store_commands(CLI::App& app, PackageFlags& flags, const std::function<void(PackageCommand)>& select) {
  CLI::App* list = app.add_subcommand("list", "Lists the packages of a store and the channels that name them");
  CLI::App* promote = app.add_subcommand("promote", "Points a channel at a package, after verifying it");
  CLI::App* rollback = app.add_subcommand("rollback", "Points a channel back at the package before the current one");
  CLI::App* gc = app.add_subcommand("gc", "Removes packages that no channel, rollback, pin or running process needs");
  CLI::App* pin = app.add_subcommand("pin", "Keeps a package from gc");
  CLI::App* unpin = app.add_subcommand("unpin", "Lets gc remove the package again");
  for (CLI::App* command : {promote, pin, unpin})
    command->add_option("package", flags.package, "Digest (8 digits are enough after sha256-) or PACKAGE")
        ->type_name("PACKAGE|STORE:CHANNEL")
        ->required();
  for (CLI::App* command : {list, promote, rollback, gc, pin, unpin}) add_store_flag(*command, flags);
  add_channel_flags(*promote, flags);
  add_channel_flags(*rollback, flags);
  rollback
      ->add_option("--from", flags.from,
                   "Digest: act only if the channel names it, so that repeating the command changes nothing")
      ->type_name("DIGEST");
  gc->add_option("--keep", flags.keep,
                 "Number of the newest packages to keep, in the store and in each channel's history")
      ->check(within(1, 10000))
      ->capture_default_str();
  gc->add_flag("--dry-run", flags.dry_run, "Only print what would be removed");
  pin->add_option("--why", flags.why, "Reason, kept in the pin")->type_name("TEXT");
  list->callback([select] { select(run_list); });
  promote->callback([select] { select([](const Global& g, const PackageFlags& f) { return run_move(g, f, false); }); });
  rollback->callback([select] { select([](const Global& g, const PackageFlags& f) { return run_move(g, f, true); }); });
  gc->callback([select] { select(run_gc); });
  pin->callback([select] { select([](const Global& g, const PackageFlags& f) { return run_pin(g, f, true); }); });
  unpin->callback([select] { select([](const Global& g, const PackageFlags& f) { return run_pin(g, f, false); }); });
}

}  // namespace specdec::cli
