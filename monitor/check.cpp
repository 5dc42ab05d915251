#include "monitor/check.h"

#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/fingerprint.h"
#include "base/model_directory.h"
#include "base/schema/package_manifest.h"
#include "base/sha256.h"
#include "monitor/follow.h"
#include "monitor/full_check.h"
#include "monitor/next_step.h"
#include "monitor/notify.h"
#include "monitor/observation.h"
#include "monitor/transaction.h"
#include "net/http_client.h"

namespace specdec::monitor {

namespace {

// What was seen of the target without asking those who serve it.
Sighting sighting_of(const Facts& facts) {
  const std::string tiers = facts.remote ? "" : differing_tiers(facts.package.manifest.target, facts.local);
  std::string stale = facts.target_check.stale;
  if (!tiers.empty())
    stale = facts.served.directory.string() + " is another target than the draft was validated for (" + tiers +
            " differ: " + facts.local.id.substr(0, 12) + ", bound to " +
            facts.package.manifest.target.id.substr(0, 12) + ")";
  return {facts.witness, stale, facts.local.id};
}

constexpr const char* kServedTarget = "served_target";

// What the state remembers under a key.
using Remembered = std::function<std::string(const char* key)>;
const char* memory_key(const Facts& facts) { return facts.remote ? "target_watch" : "target_full"; }

Facts gather(const CheckOptions& options, const Remembered& remembered, const Clock& clock) {
  std::optional<ResolvedPackage> package = resolve_package(options.package, false);
  if (!package)
    throw Error(ErrorKind::kData, options.package + ": no package, expected its directory or STORE:CHANNEL");
  Facts facts;
  facts.package = std::move(*package);
  facts.remote = is_url(options.target);
  facts.report =
      validation_report_from_json(facts.package.manifest.report, options.package + ": manifest.json: report");
  const Fingerprint& bound = facts.package.manifest.target;
  const WatchedPair pair{facts.package.digest, bound.id};
  if (facts.remote) {
    TargetWatchOptions watch = options.target_watch;
    watch.url = options.target;
    watch.false_alarm_every_days = options.false_alarm_every_days;
    facts.target_check = watch_target(watch, pair, remembered(memory_key(facts)), clock);
    facts.witness = Witness::kEndpoint;
    facts.target = facts.local = bound;
    if (!facts.target_check.stale.empty())
      facts.local.id = facts.target.id = sha256_hex("another target than " + bound.id + " at " + options.target);
    // where the probe finds it
    if (!options.policy.canary.empty()) facts.served = packaged_target(facts.package, options.package);
    return facts;
  }
  facts.served =
      options.target.empty() ? packaged_target(facts.package, options.package) : resolve_model(options.target);
  facts.target = facts.local = fingerprint_model(facts.served.directory);
  const fs::path& packaged = facts.package.target;
  const bool own_copy = options.target.empty() && facts.package.manifest.target_reference.empty();
  facts.witness = options.full_target ? Witness::kBytes : own_copy ? Witness::kCopy : Witness::kDirectory;
  if (options.full_target)
    facts.target_check = check_every_byte(pair, fs::is_directory(packaged) ? packaged : fs::path(),
                                          facts.served.directory, remembered(memory_key(facts)));
  return facts;
}

void require_options(const CheckOptions& o) {
  const Policy& p = o.policy;
  const auto need = [](bool holds, const std::string& text) {
    if (!holds) throw Error(ErrorKind::kUsage, text);
  };
  need(o.fail_on == "warn" || o.fail_on == "drift" || o.fail_on == "stale",
       "--fail-on: expected warn, drift or stale, found '" + o.fail_on + "'");
  need(p.loop.empty() || p.redistil.empty() || !p.job.empty(),
       "--loop and --redistil: give one of them (both beside --job)");
  need(p.canary.empty() || p.probe.empty(), "--canary and --probe: give one of them");
  need(p.gpu_hours == 0 || (o.requests_per_day > 0 && p.tokens_per_second > 0 && p.tokens_per_request > 0),
       "--redistil-gpu-hours: needs --requests-per-day, --tokens-per-request and --tokens-per-second too");
  for (const SecretUrl& url : p.webhooks)
    need(is_url(url.reveal()) && !net::origin_of(url.reveal()).empty(),
         "--webhook: expected http(s)://host/…, found " + url.shown());
  if (!p.alertmanager.empty()) net::base_url(p.alertmanager.reveal(), "--alertmanager", "its configuration");
  need(p.admin.empty() || !p.candidate.empty(), "--admin: needs --candidate STORE:CHANNEL, where new packages appear");
  need(p.job.empty() == p.job_image.empty(), "--job and --job-image: give both or none");
  need(p.job.empty() || !p.loop.empty(), "--job: needs --loop, which the Job runs");
}

Json result_json(const Facts& facts, const Judged& judged, const Json& evidence, const Clock& clock) {
  Json json = {{"schema", "specdec.monitor/1"},
               {"verdict", judged.verdict},
               {"reason", judged.reason},
               {"figure", judged.figure},
               {"next", judged.next},
               {"started", format_utc(clock.unix_seconds())},
               {"tool_version", SPECDEC_VERSION},
               {"inputs",
                {{"package", facts.package.digest},
                 {"target", facts.package.manifest.target.id},
                 {"draft", facts.package.manifest.draft.id},
                 {"served", facts.target.id}}},
               {"evidence", evidence}};
  if (!facts.served.hub_commit.empty()) json["inputs"]["target_commit"] = facts.served.hub_commit;
  return json;
}

// What looking at the target is to remember. Throws Error(kNetwork) in a rolling update: whose acceptance would be
// judged?
void keep_target_check(State& state, const Facts& facts) {
  if (!facts.target_check.memory.empty()) state.set_value(memory_key(facts), facts.target_check.memory);
  if (!facts.target_check.wait.empty()) throw Error(ErrorKind::kNetwork, facts.target_check.wait);
}

fs::path report_file(const CheckOptions& options) { return options.state.string() + ".report.json"; }

// What is known of the target that is served before the sources are asked.
void recall_served(const State& state, Facts& facts) {
  const ServedMemory memory = served_memory_from_text(state.value(kServedTarget), kServedTarget);
  const bool asked_elsewhere = facts.witness != Witness::kCopy && memory.by != Witness::kServer;
  if (memory.package == facts.package.digest && !asked_elsewhere) facts.found(memory.stale, memory.by);
}

struct Looked {
  Judged judged;
  Json result;
  std::string alarm_key;  // "" = no alarm
};

// Whether it was known before the sources were asked. The package's copy says nothing of what is served.
bool is_another_served(const ServedMemory& memory, const Sighting& sighting) {
  return !memory.stale.empty() || (!sighting.stale.empty() && sighting.by != Witness::kCopy);
}

// The sources, read but not kept. Where another target is known to be served, those that fail do not hide it.
Observation read_sources(const CheckOptions& options, const Clock& clock, const Facts& facts, const State& state,
                         Detector& detector, const ServedMemory& memory, const Sighting& sighting) {
  try {
    Observation observation = observe({.options = options,
                                       .package = facts.package,
                                       .report = facts.report,
                                       .state = state,
                                       .newest = memory.newest,
                                       .now = clock.unix_seconds(),
                                       .another_is_served = is_another_served(memory, sighting)},
                                      detector);
    if (!facts.target_check.named.empty()) observation.claims.add(options.target, facts.target_check.named);
    return observation;
  } catch (const Error& e) {
    if ((sighting.stale.empty() && memory.stale.empty()) || e.kind() == ErrorKind::kUsage) throw;
    Observation observation;
    observation.set_aside.push_back(e.what());
    for (const NamedRecord& r : memory.newest) observation.claims.records.add(r.time, r.target);
    return observation;
  }
}

// One look and the transition it leads to, committed together. Throws Error(kNetwork) while an update of the target is
// under way: whose acceptance would be judged?
Looked look_once(const CheckOptions& options, const Clock& clock, Facts& facts, State& state, Follow& follow) {
  Transaction transaction(state);
  const bool is_new = state.value("package") != facts.package.digest;
  if (is_new || options.acknowledge)
    start_anew(state, facts.package.digest, is_new ? "new_package" : "acknowledged", clock.unix_seconds());
  follow.package_seen(is_new);
  Detector detector = make_detector(options, facts.package, facts.report);
  if (const std::string old = state.value("detector"); !old.empty())
    detector.restore(parse_json(old, options.state.string()), options.state.string());

  const ServedMemory memory = served_memory_from_text(state.value(kServedTarget), kServedTarget);
  const Sighting sighting = sighting_of(facts);
  Detector fed = detector;
  Observation look = read_sources(options, clock, facts, state, fed, memory, sighting);
  ServedVerdict served = judge_served(memory, facts.package.digest, facts.package.manifest.target.id, sighting,
                                      look.claims, clock.unix_seconds());
  facts.found(served.target, served.memory.by);
  const bool stale = !served.stale.empty();
  // This look was the first to hear of another target, and has judged traffic that names none. So it is left, and the
  // next look reads the same again, without that traffic.
  const bool first = !served.memory.stale.empty() && !is_another_served(memory, sighting);
  const bool left = first || !served.wait.empty();
  if (left) served.memory.newest = memory.newest;
  state.set_value(kServedTarget, to_json(served.memory).dump());
  if (!served.wait.empty()) {
    follow.nothing_seen();
    transaction.commit();
    throw Error(ErrorKind::kNetwork, served.wait);
  }
  Looked out;
  if (left) {
    Observation unread;
    unread.set_aside = look.set_aside;
    unread.without_others = look.without_others;
    look = std::move(unread);
  } else {
    detector = std::move(fed);
  }
  keep(look, state);
  if (stale)
    out.judged = {"stale_target",
                  served.stale,
                  {{"name", "target"},
                   {"value", facts.target.id.substr(0, 12)},
                   {"limit", facts.package.manifest.target.id.substr(0, 12)}},
                  ""};
  else
    out.judged = judge(options, detector, facts.report, look);
  out.judged.next = next_command(options, out.judged.verdict);
  Json evidence = evidence_json(options, detector, look);
  evidence["served"] = served.evidence;
  if (!facts.target_check.evidence.is_null()) evidence["target"] = facts.target_check.evidence;
  out.result = result_json(facts, out.judged, evidence, clock);
  state.set_value("detector", detector.state().dump());
  const std::string& verdict = out.judged.verdict;
  if (state.value("verdict") != verdict)
    state.append(HistoryEntry{0, clock.unix_seconds(), verdict, facts.package.digest, out.result});
  state.set_value("verdict", verdict);
  follow.looked(verdict, out.judged.reason, {{"inputs", out.result["inputs"]}, {"evidence", out.result["evidence"]}},
                look.read.records, stale ? 1 : speedup_now(facts.report, detector));
  if (verdict == "drift" || verdict == "stale_target" || verdict == "not_worth_it")
    out.alarm_key =
        facts.package.digest + " " + state.value("epoch") + " " + verdict + (stale ? " " + facts.target.id : "");
  if (!out.alarm_key.empty() && !options.on_drift.empty())
    follow.alarmed(out.alarm_key, {{"SPECDEC_ALARM_VERDICT", verdict},
                                   {"SPECDEC_ALARM_REASON", out.judged.reason},
                                   {"SPECDEC_ALARM_PACKAGE", options.package},
                                   {"SPECDEC_ALARM_TARGET", options.target},
                                   {"SPECDEC_ALARM_SEGMENT", verdict == "drift" ? detector.peak().stratum : ""},
                                   {"SPECDEC_ALARM_REPORT", fs::absolute(report_file(options)).string()}});
  transaction.commit();
  return out;
}

}  // namespace

int monitor_exit_code(const std::string& verdict, const std::string& fail_on) {
  if (verdict == "stale_target") return 5;
  if (verdict == "inconclusive") return 4;
  if (verdict == "not_worth_it") return fail_on == "stale" ? 0 : 6;
  if (verdict == "drift") return fail_on == "stale" ? 0 : 3;
  if (verdict == "warn") return fail_on == "warn" ? 3 : 0;
  return 0;
}

CheckResult check(const CheckOptions& options, const Clock& clock) {
  require_options(options);
  const double started = clock.seconds();
  if (options.state.has_parent_path() && !fs::is_directory(options.state.parent_path()))
    throw Error(ErrorKind::kIo, options.state.string() + ": its directory does not exist");
  const FileLock lock(options.state.string() + ".lock");
  // Before the database is locked: a hub or an endpoint may have to be asked, and a new target to be downloaded.
  const bool remembers = !options.acknowledge && fs::exists(options.state);
  Facts facts =
      gather(options, [&](const char* key) { return remembers ? State(options.state).value(key) : ""; }, clock);
  State state(options.state);
  keep_target_check(state, facts);
  recall_served(state, facts);
  Follow follow(options, clock, state, lock.descriptor(), facts);
  if (follow.settle()) {
    facts = gather(options, [&](const char* key) { return state.value(key); }, clock);
    keep_target_check(state, facts);
    recall_served(state, facts);
  }
  const Looked looked = look_once(options, clock, facts, state, follow);

  CheckResult result{looked.result, looked.judged.verdict, looked.judged.reason,
                     options.exit_zero ? 0 : monitor_exit_code(looked.judged.verdict, options.fail_on)};
  const auto publish = [&] {
    result.json["state"] = name(follow.memory().stage);
    result.json["transitions"] = follow.transitions();
    result.json["actions"] = follow.actions();
    result.json["waiting"] = follow.waiting();
    result.json["seconds"] = clock.seconds() - started;
    write_file_atomic(report_file(options), result.json.dump() + "\n");
  };
  publish();
  if (const Json trigger = follow.on_drift(looked.alarm_key); !trigger.is_null()) result.json["trigger"] = trigger;
  follow.work();
  follow.tell_alertmanager();
  publish();
  if (options.policy.prom.empty()) return result;
  const PublicFiles for_the_exporter;
  write_file_atomic(options.policy.prom,
                    textfile(result.json, follow.memory(), static_cast<int64_t>(state.actions_of("redistil", 0).size()),
                             clock.unix_seconds()));
  return result;
}

}  // namespace specdec::monitor
