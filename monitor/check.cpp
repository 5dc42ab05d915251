#include "monitor/check.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/log.h"
#include "base/model_directory.h"
#include "base/schema/package_manifest.h"
#include "monitor/counter_chart.h"
#include "monitor/detector.h"
#include "monitor/trigger.h"

namespace specdec::monitor {

namespace {

constexpr int64_t kEnoughRequests = 50;   // below it the verdict is inconclusive, unless there is an alarm already
constexpr double kWarnLevel = 1000;       // e-value of the amber light: a false one in 1,000 requests at most
constexpr int64_t kEnoughForSpeed = 200;

// Everything one look gathers before it is judged.
struct Look {
  Json evidence = Json::object();
  ReadFigures read;
  int64_t watched = 0, unwatched = 0, other_draft = 0, other_target = 0;
  std::vector<std::string> chart_alarms, chart_notes;
  int64_t chart_buckets = 0;
};

void read_source_files(const CheckOptions& options, const ResolvedPackage& package, State& state, Detector& detector, Look& look) {
  const std::string draft = package.manifest.draft.id.substr(0, 12), target = package.manifest.target.id.substr(0, 12);
  for (const std::string& source : options.sources) {
    if (is_url(source)) continue;
    for (const fs::path& file : record_files(source)) {
      const std::string identity = file_identity(file);
      FilePosition position = state.position(identity);
      const ReadFigures figures = read_records(file, identity, position, [&](const AcceptanceRecord& r) {
        if (!r.draft.empty() && r.draft != draft) {
          ++look.other_draft;   // an earlier or later draft says nothing about this one, nor does this draft beside another target
        } else if (!r.target.empty() && r.target != target) {
          ++look.other_target;
        } else if (detector.add(r.segment, r.counts, r.time)) {
          ++look.watched;
        } else {
          ++look.unwatched;
        }
      });
      state.set_position(identity, position);
      look.read.records += figures.records;
      look.read.broken_lines += figures.broken_lines;
      if (look.read.first_problem.empty()) look.read.first_problem = figures.first_problem;
    }
  }
  if (look.other_target > 0)
    look.chart_notes.push_back(std::to_string(look.other_target) + " new records of this draft were made beside another target");
}

// A page that names its models must be about this package's. Engines of others do not say.
bool is_of(const Counters& page, const PackageManifest& manifest) {
  return (page.draft.empty() || manifest.draft.id.starts_with(page.draft)) && (page.target.empty() || manifest.target.id.starts_with(page.target));
}

void scrape_urls(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report, State& state, Look& look) {
  for (const std::string& url : options.sources) {
    if (!is_url(url)) continue;
    const Counters now = parse_exposition(fetch(url, options.api_key), url);
    if (!now.any) {
      look.chart_notes.push_back(url + " has no speculation series (absent is not zero): is speculation on?");
      continue;
    }
    if (!is_of(now, package.manifest)) {
      look.chart_notes.push_back(url + " serves another pair than the package's: its counters are not judged");
      continue;
    }
    const std::string name = state.value("epoch") + " " + url;   // what was counted beside another package is no base
    const std::optional<Counters> before = state.counters(name);
    CounterChart chart(report.rollout);
    const std::string key = "chart " + name;
    if (const std::string old = state.value(key); !old.empty()) chart.restore(parse_json(old, "chart"), "chart");
    // A bucket that is too small to be judged grows: the difference to the same scrape is taken again next time.
    if (!before || chart.add(difference(now, *before))) state.set_counters(name, now);
    state.set_value(key, chart.state().dump());
    look.chart_buckets = std::max(look.chart_buckets, chart.buckets());
    if (!chart.alarm().empty()) look.chart_alarms.push_back(url + ": " + chart.alarm());
    if (!chart.note().empty()) look.chart_notes.push_back(url + ": " + chart.note());
  }
}

// S(K, 1) for K = 1, 2, … over the measured costs, with tau from the baseline's overlaps moved by `change`.
std::vector<double> predictions(const ValidationReport& report, double change) {
  std::vector<double> speedups;
  double reach = 1, tau = 1;
  for (size_t i = 0; i < report.rollout.counts.reached_at.size(); ++i) {
    reach *= std::clamp(report.rollout.counts.overlap(i) + change, 0.0, 1.0);
    tau += reach;
    const int k = static_cast<int>(i) + 1;
    const auto table = report.verify_cost_table.find(1);
    double v = 1;
    if (table != report.verify_cost_table.end() && table->second.count(k)) v = table->second.at(k);
    else if (report.verify_cost.count(1)) v = report.verify_cost.at(1);
    speedups.push_back(predicted_speedup(tau, k, report.draft_cost, v));
  }
  return speedups;
}

// What the gate measured, times what the best K promises now over what the measured K promised then: predictions leave out costs
// that the measurement has in it. 0 where nothing was measured or too little was seen since.
double best_speedup_now(const ValidationReport& report, const Detector& detector) {
  if (!report.has_speed || report.speedup.n == 0 || report.draft_cost <= 0 || detector.pooled().total.n < kEnoughForSpeed) return 0;
  const bool since_change = detector.pooled().since_change().n >= kEnoughForSpeed;
  const double change = detector.within_part(since_change) + detector.mix_part(since_change);
  const std::vector<double> then = predictions(report, 0), now = predictions(report, change);
  if (then.empty()) return 0;
  const auto k = static_cast<size_t>(std::max(report.best_k, 0));
  const double promised = k >= 1 && k <= then.size() ? then[k - 1] : *std::max_element(then.begin(), then.end());
  return report.speedup.value * *std::max_element(now.begin(), now.end()) / promised;
}

Json strata_json(const Detector& detector) {
  const auto mean = [](double sum, int64_t n) { return n ? Json(sum / static_cast<double>(n)) : Json(nullptr); };
  Json strata = Json::array();
  for (const auto& [name, s] : detector.strata()) {
    const StratumBaseline& b = detector.baselines().at(name);
    if (name.empty() && s.total.n == 0 && detector.strata().size() > 1) continue;   // no request fell outside the known domains
    const Sums since = s.since_change();
    strata.push_back({{"name", name.empty() ? (detector.strata().size() > 1 ? "other" : "all") : name},
                      {"requests", s.total.n},
                      {"baseline", b.mean},
                      {"tolerance", detector.tolerance_of(name)},
                      {"acceptance", mean(s.total.x, s.total.n)},
                      {"expected", mean(s.total.expected, s.total.n)},
                      {"since_change", {{"requests", since.n}, {"acceptance", mean(since.x, since.n)}}},
                      {"log10_e", s.total.n ? s.log_evidence() / std::log(10.0) : 0.0}});
  }
  return strata;
}

struct Judged {
  std::string verdict, reason;
};

Judged judge(const CheckOptions& options, const Detector& detector, const ValidationReport& report, const Look& look) {
  const double log_e = detector.log_evidence();
  const Peak& peak = detector.peak();
  char text[300];
  if (peak.log_evidence >= alarm_level(options.requests_per_day, options.false_alarm_every_days)) {
    const Sums& since = peak.since_change;
    std::snprintf(text, sizeof text, "acceptance has dropped%s%s: %.3f in %lld requests since the change, %.3f expected (e-value 1e%.1f)",
                  peak.stratum.empty() ? "" : ", most in ", peak.stratum.c_str(), since.x / static_cast<double>(std::max<int64_t>(since.n, 1)),
                  static_cast<long long>(since.n), since.expected / static_cast<double>(std::max<int64_t>(since.n, 1)), peak.log_evidence / std::log(10.0));
    return {"drift", text};
  }
  if (!look.chart_alarms.empty()) return {"drift", look.chart_alarms.front()};
  if (const double s = best_speedup_now(report, detector); s > 0 && s <= 1.0) {
    std::snprintf(text, sizeof text, "at today's acceptance no K is faster than plain decoding: speed-up %.2f, %.2f when it was validated", s,
                  report.speedup.value);
    return {"not_worth_it", text};
  }
  if (log_e >= std::log(kWarnLevel)) {
    std::snprintf(text, sizeof text, "evidence of a drop is growing (e-value %.0f)", std::exp(std::min(log_e, 40.0)));
    return {"warn", text};
  }
  if (!look.chart_notes.empty()) return {"warn", look.chart_notes.front()};
  if (detector.pooled().total.n < kEnoughRequests && look.chart_buckets < CounterChart::kPhaseOne)
    return {"inconclusive", "too little data: " + std::to_string(detector.pooled().total.n) + " requests watched, " + std::to_string(kEnoughRequests) + " needed"};
  if (detector.pooled().total.n == 0) return {"healthy", std::to_string(look.chart_buckets) + " scrapes of counters judged, no drop"};
  std::snprintf(text, sizeof text, "%lld requests watched, acceptance %+.3f within strata and %+.3f by mix against the baseline",
                static_cast<long long>(detector.pooled().total.n), detector.within_part(false), detector.mix_part(false));
  return {"healthy", text};
}

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

Json evidence_json(const CheckOptions& options, const Detector& detector, const Look& look) {
  const Peak& peak = detector.peak();
  const double level = alarm_level(options.requests_per_day, options.false_alarm_every_days);
  const bool drift = peak.log_evidence >= level;
  Json e = {{"requests", detector.pooled().total.n},
            {"new_records", look.read.records},
            {"watched", look.watched},
            {"too_short", look.unwatched},
            {"of_another_draft", look.other_draft},
            {"of_another_target", look.other_target},
            {"broken_lines", look.read.broken_lines},
            {"log10_e", detector.pooled().total.n ? detector.log_evidence() / std::log(10.0) : 0.0},
            {"log10_e_peak", detector.pooled().total.n ? peak.log_evidence / std::log(10.0) : 0.0},
            {"log10_alarm", level / std::log(10.0)},
            {"mix_part", detector.mix_part(drift)},
            {"within_part", detector.within_part(drift)},
            {"strata", strata_json(detector)},
            {"counter_alarms", look.chart_alarms},
            {"notes", look.chart_notes}};
  if (!look.read.first_problem.empty()) e["first_broken_line"] = look.read.first_problem;
  // The best guess: the start whose single-start product is the largest.
  if (drift)
    e["change_point"] = {{"stratum", peak.stratum}, {"after_requests", peak.change_requests}, {"time", format_utc(peak.change_time)}};
  return e;
}

}  // namespace

double alarm_level(double requests_per_day, double false_alarm_every_days) {
  return std::log(requests_per_day > 0 ? std::max(requests_per_day * false_alarm_every_days, 100.0) : 1e6);
}

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
  Detector detector = with_context(where, [&] { return Detector(baselines(report), options.wander_sd); });
  if (const std::string old = state.value("detector"); !old.empty()) detector.restore(parse_json(old, options.state.string()), options.state.string());

  Look look;
  const std::string stale = stale_reason(served, *package);
  Judged judged{"stale_target", stale};
  if (stale.empty()) {
    read_source_files(options, *package, state, detector, look);
    scrape_urls(options, *package, report, state, look);
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
