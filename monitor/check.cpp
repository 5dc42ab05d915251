#include "monitor/check.h"


#include "base/error.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/model_directory.h"
#include "base/schema/package_manifest.h"
#include "monitor/look.h"
#include "monitor/trigger.h"

namespace specdec::monitor {

namespace {

// Another package or an acknowledged alarm: detectors, charts and what the trigger remembers begin again; positions in files stay.
void start_anew(State& state, const std::string& package, const std::string& why, const Clock& clock) {
  state.append({0, clock.unix_seconds(), why, package, {{"reason", state.value("package").empty() ? "first check" : "after " + state.value("verdict")}, {"before", state.value("package")}}});
  state.set_value("package", package);
  state.set_value("detector", "");
  state.set_value("verdict", "");
  const std::string epoch = state.value("epoch");
  state.set_value("epoch", std::to_string(epoch.empty() ? 1 : std::stoll(epoch) + 1));
}

// The verdict on the target comes before everything else: a changed target does not wait for drift.
std::string stale_reason(const ResolvedModel& target, const ResolvedPackage& package) {
  const Fingerprint now = fingerprint_model(target.directory);
  const std::string tiers = differing_tiers(package.manifest.target, now);
  if (tiers.empty()) return "";
  return target.directory.string() + " is another target than the draft was validated for (" + tiers + " differ: " + now.id.substr(0, 12) + ", bound to " +
         package.manifest.target.id.substr(0, 12) + ")";
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
  if (options.fail_on != "warn" && options.fail_on != "drift" && options.fail_on != "stale")
    throw Error(ErrorKind::kUsage, "--fail-on: expected warn, drift or stale, found '" + options.fail_on + "'");
  if (is_url(options.target)) throw Error(ErrorKind::kUsage, "--target: a remote target cannot be fingerprinted; expected its directory, found " + options.target);
  const double started = clock.seconds();
  const std::optional<ResolvedPackage> package = resolve_package(options.package, false);
  if (!package) throw Error(ErrorKind::kData, options.package + ": no package, expected its directory or STORE:CHANNEL");
  const std::string where = options.package + ": manifest.json: report";
  const ValidationReport report = validation_report_from_json(package->manifest.report, where);

  // Before the state is locked: a hub may have to be asked, and a new target to be downloaded.
  const ResolvedModel served = options.target.empty() ? packaged_target(*package, options.package) : resolve_model(options.target);

  State state(options.state);
  state.begin();
  const bool is_new = state.value("package") != package->digest;
  if (is_new || options.acknowledge) start_anew(state, package->digest, is_new ? "new_package" : "acknowledged", clock);
  Detector detector = make_detector(options, *package, report);
  if (const std::string old = state.value("detector"); !old.empty()) detector.restore(parse_json(old, options.state.string()), options.state.string());

  Look look;
  const std::string stale = stale_reason(served, *package);
  Judged judged{"stale_target", stale};
  if (stale.empty()) {
    look = take_look(options, *package, report, state, detector);
    judged = judge(options, detector, report, look);
  }
  CheckResult result;
  result.verdict = judged.verdict;
  result.reason = judged.reason;
  result.exit_code = options.exit_zero ? 0 : monitor_exit_code(judged.verdict, options.fail_on);
  result.json = {{"schema", "specdec.monitor/1"},
                 {"verdict", judged.verdict},
                 {"reason", judged.reason},
                 {"started", format_utc(clock.unix_seconds())},
                 {"tool_version", SPECDEC_VERSION},
                 {"inputs", {{"package", package->digest}, {"target", package->manifest.target.id}, {"draft", package->manifest.draft.id}}},
                 {"evidence", evidence_json(options, detector, look)}};
  if (!served.hub_commit.empty()) result.json["inputs"]["target_commit"] = served.hub_commit;
  state.set_value("detector", detector.state().dump());
  if (state.value("verdict") != judged.verdict) state.append({0, clock.unix_seconds(), judged.verdict, package->digest, result.json});
  state.set_value("verdict", judged.verdict);
  state.commit();

  result.json["seconds"] = clock.seconds() - started;
  const fs::path report_file = options.state.string() + ".report.json";
  write_file_atomic(report_file, result.json.dump() + "\n");

  const bool alarm = judged.verdict == "drift" || judged.verdict == "stale_target" || judged.verdict == "not_worth_it";
  if (alarm && !options.on_drift.empty()) {
    const std::string alarm_key = package->digest + " " + state.value("epoch") + " " + judged.verdict + (stale.empty() ? "" : " " + stale);
    const std::string segment = judged.verdict == "drift" ? detector.peak().stratum : "";
    result.json["trigger"] = run_trigger(state, options, {alarm_key, segment, report_file}, result, clock);
  }
  return result;
}

}  // namespace specdec::monitor
