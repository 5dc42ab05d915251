#include "monitor/check.h"

#include <functional>

#include "base/error.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/model_directory.h"
#include "base/schema/package_manifest.h"
#include "base/sha256.h"
#include "monitor/follow.h"
#include "monitor/full_check.h"
#include "monitor/look.h"
#include "monitor/notify.h"

namespace specdec::monitor {

namespace {

// The verdict on the target comes before everything else: a changed target does not wait for drift.
std::string stale_reason(const Facts& facts) {
  const std::string tiers = facts.remote ? "" : differing_tiers(facts.package.manifest.target, facts.target);
  if (tiers.empty()) return facts.sight.stale;
  return facts.served.directory.string() + " is another target than the draft was validated for (" + tiers + " differ: " + facts.target.id.substr(0, 12) + ", bound to " +
         facts.package.manifest.target.id.substr(0, 12) + ")";
}

// What the state remembers under a key.
using Remembered = std::function<std::string(const char* key)>;
const char* memory_key(const Facts& facts) { return facts.remote ? "target_watch" : "target_full"; }

Facts gather(const CheckOptions& options, const Remembered& remembered, const Clock& clock) {
  std::optional<ResolvedPackage> package = resolve_package(options.package, false);
  if (!package) throw Error(ErrorKind::kData, options.package + ": no package, expected its directory or STORE:CHANNEL");
  Facts facts{std::move(*package), {}, {}, {}, is_url(options.target), {}};
  facts.report = validation_report_from_json(facts.package.manifest.report, options.package + ": manifest.json: report");
  const Fingerprint& bound = facts.package.manifest.target;
  const WatchedPair pair{facts.package.digest, bound.id};
  if (facts.remote) {
    TargetWatchOptions watch = options.target_watch;
    watch.url = options.target;
    watch.false_alarm_every_days = options.false_alarm_every_days;
    facts.sight = watch_target(watch, pair, remembered(memory_key(facts)), clock);
    facts.target = bound;
    if (!facts.sight.stale.empty()) facts.target.id = sha256_hex("another target than " + bound.id + " at " + options.target);
    if (!options.policy.canary.empty()) facts.served = packaged_target(facts.package, options.package);   // where the probe finds it
    return facts;
  }
  facts.served = options.target.empty() ? packaged_target(facts.package, options.package) : resolve_model(options.target);
  facts.target = fingerprint_model(facts.served.directory);
  const fs::path& packaged = facts.package.target;
  if (options.full_target) facts.sight = check_every_byte(pair, fs::is_directory(packaged) ? packaged : fs::path(), facts.served.directory, remembered(memory_key(facts)));
  return facts;
}

void require_options(const CheckOptions& o) {
  const Policy& p = o.policy;
  const auto need = [](bool holds, const std::string& text) {
    if (!holds) throw Error(ErrorKind::kUsage, text);
  };
  need(o.fail_on == "warn" || o.fail_on == "drift" || o.fail_on == "stale", "--fail-on: expected warn, drift or stale, found '" + o.fail_on + "'");
  need(p.loop.empty() || p.redistil.empty() || !p.job.empty(), "--loop and --redistil: give one of them (both beside --job)");
  need(p.canary.empty() || p.probe.empty(), "--canary and --probe: give one of them");
  need(p.gpu_hours == 0 || (o.requests_per_day > 0 && p.tokens_per_second > 0 && p.tokens_per_request > 0),
       "--redistil-gpu-hours: needs --requests-per-day, --tokens-per-request and --tokens-per-second too");
  need(p.admin.empty() || !p.candidate.empty(), "--admin: needs --candidate STORE:CHANNEL, where new packages appear");
  need(p.job.empty() == p.job_image.empty(), "--job and --job-image: give both or none");
  need(p.job.empty() || !p.loop.empty(), "--job: needs --loop, which the Job runs");
}

Json result_json(const Facts& facts, const Judged& judged, const Json& evidence, const Clock& clock) {
  Json json = {{"schema", "specdec.monitor/1"},
               {"verdict", judged.verdict},
               {"reason", judged.reason},
               {"started", format_utc(clock.unix_seconds())},
               {"tool_version", SPECDEC_VERSION},
               {"inputs", {{"package", facts.package.digest}, {"target", facts.package.manifest.target.id}, {"draft", facts.package.manifest.draft.id}, {"served", facts.target.id}}},
               {"evidence", evidence}};
  if (!facts.served.hub_commit.empty()) json["inputs"]["target_commit"] = facts.served.hub_commit;
  return json;
}

// What looking at the target is to remember. Throws Error(kNetwork) in a rolling update: whose acceptance would be judged?
void keep_sight(State& state, const Facts& facts) {
  if (!facts.sight.memory.empty()) state.set_value(memory_key(facts), facts.sight.memory);
  if (!facts.sight.wait.empty()) throw Error(ErrorKind::kNetwork, facts.sight.wait);
}

fs::path report_file(const CheckOptions& options) { return options.state.string() + ".report.json"; }

struct Looked {
  Judged judged;
  Json result;
  std::string alarm_key;   // "" = no alarm
};

// One look and the transition it leads to, committed together.
Looked look_once(const CheckOptions& options, const Clock& clock, const Facts& facts, State& state, Follow& follow) {
  state.begin();
  const bool is_new = state.value("package") != facts.package.digest;
  if (is_new || options.acknowledge) start_anew(state, facts.package.digest, is_new ? "new_package" : "acknowledged", clock.unix_seconds());
  follow.package_seen(is_new);
  Detector detector = make_detector(options, facts.package, facts.report);
  if (const std::string old = state.value("detector"); !old.empty()) detector.restore(parse_json(old, options.state.string()), options.state.string());

  Look look;
  const std::string stale = stale_reason(facts);
  Looked out{{"stale_target", stale}, {}, {}};
  if (stale.empty()) {
    look = take_look(options, facts.package, facts.report, state, detector);
    out.judged = judge(options, detector, facts.report, look);
  }
  Json evidence = evidence_json(options, detector, look);
  if (!facts.sight.evidence.is_null()) evidence["target"] = facts.sight.evidence;
  out.result = result_json(facts, out.judged, evidence, clock);
  state.set_value("detector", detector.state().dump());
  if (state.value("verdict") != out.judged.verdict) state.append(HistoryEntry{0, clock.unix_seconds(), out.judged.verdict, facts.package.digest, out.result});
  state.set_value("verdict", out.judged.verdict);
  follow.looked(out.judged.verdict, out.judged.reason, {{"inputs", out.result["inputs"]}, {"evidence", out.result["evidence"]}}, look.read.records,
                stale.empty() ? speedup_now(facts.report, detector) : 1);
  const std::string& verdict = out.judged.verdict;
  if (verdict == "drift" || verdict == "stale_target" || verdict == "not_worth_it")
    out.alarm_key = facts.package.digest + " " + state.value("epoch") + " " + verdict + (stale.empty() ? "" : " " + stale);
  if (!out.alarm_key.empty() && !options.on_drift.empty())
    follow.alarmed(out.alarm_key, {{"SPECDEC_ALARM_VERDICT", verdict},
                                   {"SPECDEC_ALARM_REASON", out.judged.reason},
                                   {"SPECDEC_ALARM_PACKAGE", options.package},
                                   {"SPECDEC_ALARM_TARGET", options.target},
                                   {"SPECDEC_ALARM_SEGMENT", verdict == "drift" ? detector.peak().stratum : ""},
                                   {"SPECDEC_ALARM_REPORT", fs::absolute(report_file(options)).string()}});
  state.commit();
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
  Facts facts = gather(options, [&](const char* key) { return remembers ? State(options.state).value(key) : ""; }, clock);
  State state(options.state);
  keep_sight(state, facts);
  Follow follow(options, clock, state, lock.descriptor(), facts);
  if (follow.settle()) {
    facts = gather(options, [&](const char* key) { return state.value(key); }, clock);
    keep_sight(state, facts);
  }
  const Looked looked = look_once(options, clock, facts, state, follow);

  CheckResult result{looked.result, looked.judged.verdict, looked.judged.reason, options.exit_zero ? 0 : monitor_exit_code(looked.judged.verdict, options.fail_on)};
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
  write_file_atomic(options.policy.prom, textfile(result.json, follow.memory(), static_cast<int64_t>(state.actions_of("redistil", 0).size()), clock.unix_seconds()));
  return result;
}

}  // namespace specdec::monitor
