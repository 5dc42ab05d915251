#include "monitor/facts/facts.h"

#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "monitor/facts/full_check.h"
#include "monitor/read/scrape.h"

namespace specdec::monitor {

namespace {

const char* memory_key(const Facts& facts) { return facts.remote ? "target_watch" : "target_full"; }

void watch_endpoint(const CheckOptions& options, const Remembered& remembered, const Clock& clock, Facts& facts) {
  const Fingerprint& bound = facts.package.manifest.target;
  TargetWatchOptions watch = options.target_watch;
  watch.url = options.target;
  watch.false_alarm_every_days = options.false_alarm_every_days;
  facts.target_check = watch_target(watch, {facts.package.digest, bound.id}, remembered(memory_key(facts)), clock);
  facts.witness = Witness::kEndpoint;
  facts.target = facts.local = bound;
  if (!facts.target_check.stale.empty())
    facts.local.id = facts.target.id = sha256_hex("another target than " + bound.id + " at " + options.target);
  // A probe runs a copy of the target. An endpoint gives no files, so the copy in the package is used.
  if (!options.policy.canary.empty()) facts.served = packaged_target(facts.package, options.package);
}

void look_at_directory(const CheckOptions& options, const Remembered& remembered, Facts& facts) {
  facts.served =
      options.target.empty() ? packaged_target(facts.package, options.package) : resolve_model(options.target);
  facts.target = facts.local = fingerprint_model(facts.served.directory);
  const fs::path& packaged = facts.package.target;
  const bool own_copy = options.target.empty() && facts.package.manifest.target_reference.empty();
  facts.witness = options.full_target ? Witness::kBytes : own_copy ? Witness::kCopy : Witness::kDirectory;
  if (options.full_target)
    facts.target_check = check_every_byte({facts.package.digest, facts.package.manifest.target.id},
                                          fs::is_directory(packaged) ? packaged : fs::path(), facts.served.directory,
                                          remembered(memory_key(facts)));
}

}  // namespace

void Facts::found(const std::string& id, Witness by) {
  target = local;
  unknown = !id.empty() && by == Witness::kEndpoint;
  if (id.empty() || same_target(id, local.id)) return;
  target = {};
  target.id = id;
}

std::string Facts::misfit(const Fingerprint& bound) const {
  if (unknown) return same_target(bound.id, package.manifest.target.id) ? "all" : "";
  if (target.id == local.id) return differing_tiers(bound, target);
  return same_target(bound.id, target.id) ? "" : "all";
}

Facts gather_facts(const CheckOptions& options, const Remembered& remembered, const Clock& clock) {
  std::optional<ResolvedPackage> package = resolve_package(options.package, false);
  if (!package)
    throw Error(ErrorKind::kData, options.package + ": no package, expected its directory or STORE:CHANNEL");
  Facts facts;
  facts.package = std::move(*package);
  facts.remote = is_url(options.target);
  facts.report =
      validation_report_from_json(facts.package.manifest.report, options.package + ": manifest.json: report");
  if (facts.remote)
    watch_endpoint(options, remembered, clock, facts);
  else
    look_at_directory(options, remembered, facts);
  return facts;
}

void keep_target_check(State& state, const Facts& facts) {
  if (!facts.target_check.memory.empty()) state.set_value(memory_key(facts), facts.target_check.memory);
  if (!facts.target_check.wait.empty()) throw Error(ErrorKind::kNetwork, facts.target_check.wait);
}

void recall_served(const State& state, Facts& facts) {
  const ServedMemory memory = served_memory_from_text(state.value(kServedTarget), kServedTarget);
  const bool asked_elsewhere = facts.witness != Witness::kCopy && memory.by != Witness::kServer;
  if (memory.package == facts.package.digest && !asked_elsewhere) facts.found(memory.stale, memory.by);
}

Sighting sighting_of(const Facts& facts) {
  const std::string tiers = facts.remote ? "" : differing_tiers(facts.package.manifest.target, facts.local);
  std::string stale = facts.target_check.stale;
  if (!tiers.empty())
    stale = facts.served.directory.string() + " is another target than the draft was validated for (" + tiers +
            " differ: " + facts.local.id.substr(0, 12) + ", bound to " +
            facts.package.manifest.target.id.substr(0, 12) + ")";
  return {facts.witness, stale, facts.local.id};
}

}  // namespace specdec::monitor
