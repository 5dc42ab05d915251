// Implements `specdec package` list | promote | rollback | gc | pin | unpin: the commands of the store.
#include <cstdio>

#include "base/format.h"
#include "base/schema/validation_report.h"
#include "cli/package.h"
#include "cli/results.h"
#include "deploy/package/store.h"

namespace specdec::cli {

void visit_package_head(Fields& f, PackageResult& result, const char* action,
                        const std::vector<const char*>& verdicts) {
  visit_head(f, result.head, ("package_" + std::string(action)).c_str(), verdicts);
  f.json("inputs", result.inputs);
}

namespace {

struct ListedRow {
  std::string digest, path, problem, created, verdict, kind, target, visibility, parent;
  std::vector<std::string> channels;
  bool pinned = false, is_whole = false;
  double alpha = 0;
  std::optional<double> speedup = {};
};
void visit_fields(Fields& f, ListedRow& row) {
  f.type("ListedPackage", "A package of a store; one with a problem has no more than that.");
  const auto known = [&](const char* key) { return Key(key, "", row.is_whole ? Presence::kAlways : Presence::kIfAny); };
  f("digest", row.digest);
  f("path", row.path);
  f("channels", row.channels);
  f("pinned", row.pinned);
  f("problem", row.problem);
  f(known("created"), row.created);
  f(known("verdict"), row.verdict);
  f(known("kind"), row.kind);
  f(known("alpha"), row.alpha, {0, 1});
  Json speedup = row.speedup ? Json(*row.speedup) : Json();
  f.json(known("speedup"), speedup, {{"type", {"number", "null"}}});
  f(known("target"), row.target);
  f.one_of(known("visibility"), row.visibility, {"public", "private"});
  f(known("parent"), row.parent);
}

struct ListResult : PackageResult {
  std::vector<ListedRow> packages;
};
void visit_fields(Fields& f, ListResult& r) {
  f.type("PackageListResult", "The packages of a store.");
  visit_package_head(f, r, "list", {"ok"});
  f("packages", r.packages);
}

ListedRow row_of(const deploy::ListedPackage& p) {
  ListedRow row;
  row.digest = p.digest;
  row.path = p.path.string();
  row.problem = p.problem;
  row.channels = p.channels;
  row.pinned = p.pinned;
  row.is_whole = p.problem.empty();
  if (!row.is_whole) return row;
  const ValidationReport report = validation_report_from_json(p.manifest.report, p.path.string());
  row.created = p.manifest.created;
  row.verdict = to_string(report.verdict);
  row.kind = p.manifest.draft_kind;
  row.alpha = report.alpha.value;
  if (report.has_speed) row.speedup = report.speedup.value;
  row.target = p.manifest.target.id;
  row.visibility = p.manifest.is_public ? "public" : "private";
  row.parent = p.manifest.parent;
  return row;
}

int run_list(const Global& global, const PackageFlags& flags) {
  ListResult result;
  result.head.verdict = "ok";
  result.inputs = {{"store", flags.store}};
  for (const deploy::ListedPackage& p : deploy::list_packages(flags.store)) {
    const ListedRow row = row_of(p);
    result.packages.push_back(row);
    if (global.json) continue;
    std::string channels, text = row.problem;
    for (const std::string& c : row.channels) channels += " " + c;
    if (row.pinned) channels += " (pinned)";
    if (row.is_whole) {
      const std::string figures = format("%-8s alpha %.3f  speed-up %s", row.verdict.c_str(), row.alpha,
                                         row.speedup ? std::to_string(*row.speedup).substr(0, 4).c_str() : "-");
      text = row.created + "  " + figures + "  " + row.kind;
    }
    std::printf("sha256-%s  %s%s%s\n", row.digest.substr(0, 12).c_str(), text.c_str(), channels.empty() ? "" : "  ←",
                channels.c_str());
  }
  if (global.json) print(result);
  return 0;
}

std::string digest_of(const std::string& package) {
  const std::string digest = package.rfind("sha256-", 0) == 0 ? package.substr(7) : package;
  if (!digest.empty() && !is_sha256_hex(digest))
    throw Error(ErrorKind::kUsage, "--from: expected a package's whole digest, found '" + package + "'");
  return digest;
}

struct MoveResult : PackageResult {
  bool back = false;
  deploy::ChannelChange change;
};
void visit_fields(Fields& f, MoveResult& r) {
  f.type(r.back ? "PackageRollbackResult" : "PackagePromoteResult", "The package that a channel names now.");
  visit_package_head(f, r, r.back ? "rollback" : "promote", {"changed", "unchanged"});
  f("channel", r.change.channel);
  f("from", r.change.from);
  f("to", r.change.to);
  f(if_any("number"), r.change.number, kAnyCount);
}
MoveResult move_result(bool back) {
  MoveResult result;
  result.back = back;
  return result;
}

int run_move(const Global& global, const PackageFlags& flags, bool back) {
  MoveResult result = move_result(back);
  const deploy::ChannelSigner signer = channel_signer(flags);
  const deploy::ChannelChange& change = result.change =
      back ? deploy::rollback(flags.store, flags.channel, {flags.why, result.now()}, digest_of(flags.from), signer)
           : deploy::promote(flags.store, flags.package, flags.channel, {flags.why, result.now()}, signer);
  result.head.verdict = change.changed ? "changed" : "unchanged";
  result.inputs = {{"store", flags.store}};
  if (global.json)
    print(result);
  else if (!change.changed)
    std::printf("%s: names sha256-%s already\n", change.channel.c_str(), change.to.substr(0, 12).c_str());
  else
    std::printf("%s: %s -> sha256-%s\n", change.channel.c_str(),
                change.from.empty() ? "(new)" : ("sha256-" + change.from.substr(0, 12)).c_str(),
                change.to.substr(0, 12).c_str());
  return 0;
}

struct GcResult : PackageResult {
  deploy::Collected collected;
  bool dry_run = false;
};
void visit_fields(Fields& f, GcResult& r) {
  f.type("PackageGcResult", "The packages that were removed.");
  visit_package_head(f, r, "gc", {"changed", "unchanged", "would_change"});
  f("removed", r.collected.removed);
  f("kept", r.collected.kept);
  f("bytes", r.collected.bytes, kAnyCount);
  f("dry_run", r.dry_run);
}

int run_gc(const Global& global, const PackageFlags& flags) {
  GcResult result;
  const deploy::Collected& collected = result.collected =
      deploy::collect_garbage(flags.store, static_cast<size_t>(flags.keep), flags.dry_run);
  result.dry_run = flags.dry_run;
  result.head.verdict = collected.removed.empty() ? "unchanged" : flags.dry_run ? "would_change" : "changed";
  result.inputs = {{"store", flags.store}, {"keep", flags.keep}};
  if (global.json) {
    print(result);
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

struct PinResult : PackageResult {
  bool keep = true;
};
void visit_fields(Fields& f, PinResult& r) {
  f.type(r.keep ? "PackagePinResult" : "PackageUnpinResult", "Whether the pin has changed.");
  visit_package_head(f, r, r.keep ? "pin" : "unpin", {"changed", "unchanged"});
}
PinResult pin_result(bool keep) {
  PinResult result;
  result.keep = keep;
  return result;
}

int run_pin(const Global& global, const PackageFlags& flags, bool keep) {
  PinResult result = pin_result(keep);
  const bool changed = keep ? deploy::pin(flags.store, flags.package, {flags.why, result.now()})
                            : deploy::unpin(flags.store, flags.package);
  result.head.verdict = changed ? "changed" : "unchanged";
  result.inputs = {{"store", flags.store}, {"package", flags.package}};
  if (global.json)
    print(result);
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

void describe_store_results(Results& results) {
  results.add<ListResult>({.commands = {"package list"}});
  results.add(move_result(false), {.commands = {"package promote"}});
  results.add(move_result(true), {.commands = {"package rollback"}});
  results.add<GcResult>({.commands = {"package gc"}});
  results.add(pin_result(true), {.commands = {"package pin"}});
  results.add(pin_result(false), {.commands = {"package unpin"}});
}

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
