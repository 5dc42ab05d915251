#include "monitor/check.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/fingerprint.h"
#include "base/log.h"
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
  int64_t watched = 0, unwatched = 0, other_pair = 0;
  std::vector<std::string> chart_alarms, chart_notes;
  int64_t chart_buckets = 0;
};

void read_source_files(const CheckOptions& options, const ResolvedPackage& package, State& state, Detector& detector, Look& look) {
  const std::string draft = package.manifest.draft.id.substr(0, 12);
  for (const std::string& source : options.sources) {
    if (is_url(source)) continue;
    for (const fs::path& file : record_files(source)) {
      FilePosition position = state.position(fs::absolute(file).string());
      const ReadFigures figures = read_records(file, position, [&](const AcceptanceRecord& r) {
        if (!r.draft.empty() && r.draft != draft) {
          ++look.other_pair;   // records of an earlier or later draft say nothing about this one
        } else if (detector.add(r.segment, r.counts, r.time)) {
          ++look.watched;
        } else {
          ++look.unwatched;
        }
      });
      state.set_position(fs::absolute(file).string(), position);
      look.read.records += figures.records;
      look.read.broken_lines += figures.broken_lines;
      if (look.read.first_problem.empty()) look.read.first_problem = figures.first_problem;
    }
  }
}

void scrape_urls(const CheckOptions& options, const ValidationReport& report, State& state, Look& look) {
  for (const std::string& url : options.sources) {
    if (!is_url(url)) continue;
    const Counters now = parse_exposition(fetch(url), url);
    if (!now.any) {
      look.chart_notes.push_back(url + " has no speculation series (absent is not zero): is speculation on?");
      continue;
    }
    const std::optional<Counters> before = state.counters(url);
    CounterChart chart(report.rollout, report.alpha);
    const std::string key = "chart " + url;
    if (const std::string old = state.value(key); !old.empty()) chart.restore(parse_json(old, "chart"), "chart");
    if (before) chart.add(difference(now, *before));
    state.set_counters(url, now);
    state.set_value(key, chart.state().dump());
    look.chart_buckets = std::max(look.chart_buckets, chart.buckets());
    if (!chart.alarm().empty()) look.chart_alarms.push_back(url + ": " + chart.alarm());
    if (!chart.note().empty()) look.chart_notes.push_back(url + ": " + chart.note());
  }
}

// Best S(K, 1) over the measured costs with tau from the overlaps seen now; 0 when costs are not known.
double best_speedup_now(const ValidationReport& report, const Detector& detector) {
  if (!report.has_speed || report.draft_cost <= 0 || detector.pooled().n < kEnoughForSpeed) return 0;
  const double change = detector.within_part() + detector.mix_part();
  double best = 0, reach = 1, tau = 1;
  for (size_t i = 0; i < report.rollout.counts.reached_at.size(); ++i) {
    reach *= std::clamp(report.rollout.counts.overlap(i) + change, 0.0, 1.0);
    tau += reach;
    const int k = static_cast<int>(i) + 1;
    const auto table = report.verify_cost_table.find(1);
    double v = 1;
    if (table != report.verify_cost_table.end() && table->second.count(k)) v = table->second.at(k);
    else if (report.verify_cost.count(1)) v = report.verify_cost.at(1);
    best = std::max(best, predicted_speedup(tau, k, report.draft_cost, v));
  }
  return best;
}

Json strata_json(const Detector& detector) {
  Json strata = Json::array();
  for (const auto& [name, s] : detector.strata()) {
    const StratumBaseline& b = detector.baselines().at(name);
    Json row = {{"name", name.empty() ? "all" : name}, {"requests", s.n}, {"baseline", b.mean}, {"standard_error", b.standard_error}};
    row["acceptance"] = s.n ? Json(s.sum_x / static_cast<double>(s.n)) : Json(nullptr);
    row["bound"] = s.n ? Json(s.sum_b / static_cast<double>(s.n)) : Json(nullptr);
    row["log10_e"] = s.n ? s.log_evidence() / std::log(10.0) : 0.0;
    strata.push_back(row);
  }
  return strata;
}

struct Judged {
  std::string verdict, reason;
};

Judged judge(const CheckOptions& options, const Detector& detector, const ValidationReport& report, const Look& look) {
  const double log_e = detector.log_evidence();
  char text[200];
  if (log_e >= alarm_level(options.requests_per_day, options.false_alarm_every_days)) {
    const std::string guilty = detector.guilty_stratum();
    std::snprintf(text, sizeof text, "acceptance has dropped%s%s: within strata %+.3f, mix %+.3f against the baseline (e-value 1e%.1f)",
                  guilty.empty() ? "" : ", most in ", guilty.c_str(), detector.within_part(), detector.mix_part(), log_e / std::log(10.0));
    return {"drift", text};
  }
  if (!look.chart_alarms.empty()) return {"drift", look.chart_alarms.front()};
  if (const double s = best_speedup_now(report, detector); s > 0 && s <= 1.0) {
    std::snprintf(text, sizeof text, "at today's acceptance no K is predicted to be faster than plain decoding (best speed-up %.2f)", s);
    return {"not_worth_it", text};
  }
  if (log_e >= std::log(kWarnLevel)) {
    std::snprintf(text, sizeof text, "evidence of a drop is growing (e-value %.0f)", std::exp(std::min(log_e, 40.0)));
    return {"warn", text};
  }
  if (!look.chart_notes.empty()) return {"warn", look.chart_notes.front()};
  if (detector.pooled().n < kEnoughRequests && look.chart_buckets < CounterChart::kPhaseOne)
    return {"inconclusive", "too little data: " + std::to_string(detector.pooled().n) + " requests watched, " + std::to_string(kEnoughRequests) + " needed"};
  std::snprintf(text, sizeof text, "%lld requests watched, acceptance %+.3f within strata and %+.3f by mix against the baseline",
                static_cast<long long>(detector.pooled().n), detector.within_part(), detector.mix_part());
  return {"healthy", text};
}

// The verdict on the target comes before everything else: a changed target does not wait for drift.
std::string stale_reason(const CheckOptions& options, const ResolvedPackage& package) {
  const fs::path target = options.target.empty() ? package.target : fs::path(options.target);
  const Fingerprint now = fingerprint_model(target);
  const std::string tiers = differing_tiers(package.manifest.target, now);
  if (tiers.empty()) return "";
  return target.string() + " is another target than the draft was validated for (" + tiers + " differ: " + now.id.substr(0, 12) + ", bound to " +
         package.manifest.target.id.substr(0, 12) + ")";
}

Json evidence_json(const CheckOptions& options, const Detector& detector, const Look& look) {
  Json e = {{"requests", detector.pooled().n},
            {"new_records", look.read.records},
            {"watched", look.watched},
            {"without_baseline_or_too_short", look.unwatched},
            {"of_another_draft", look.other_pair},
            {"broken_lines", look.read.broken_lines},
            {"log10_e", detector.pooled().n ? detector.log_evidence() / std::log(10.0) : 0.0},
            {"log10_alarm", alarm_level(options.requests_per_day, options.false_alarm_every_days) / std::log(10.0)},
            {"mix_part", detector.mix_part()},
            {"within_part", detector.within_part()},
            {"strata", strata_json(detector)},
            {"counter_alarms", look.chart_alarms},
            {"notes", look.chart_notes}};
  if (!look.read.first_problem.empty()) e["first_broken_line"] = look.read.first_problem;
  if (detector.pooled().lowest_n > 0)
    e["change_point"] = {{"after_requests", detector.pooled().lowest_n}, {"time", format_utc(detector.pooled().lowest_time)}};
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

  State state(options.state);
  state.begin();
  if (state.value("package") != package->digest) {
    state.append({0, clock.unix_seconds(), "new_package", package->digest, {{"before", state.value("package")}}});
    state.set_value("package", package->digest);
    state.set_value("detector", "");
    for (const std::string& source : options.sources) state.set_value("chart " + source, "");
  }
  Detector detector = with_context(where, [&] { return Detector(baselines(report), options.wander_sd); });
  if (const std::string old = state.value("detector"); !old.empty()) detector.restore(parse_json(old, options.state.string()), options.state.string());

  Look look;
  const std::string stale = stale_reason(options, *package);
  Judged judged{"stale_target", stale};
  if (stale.empty()) {
    read_source_files(options, *package, state, detector, look);
    scrape_urls(options, report, state, look);
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
  state.set_value("detector", detector.state().dump());
  if (state.value("verdict") != judged.verdict) state.append({0, clock.unix_seconds(), judged.verdict, package->digest, result.json});
  state.set_value("verdict", judged.verdict);
  state.commit();

  const bool alarm = judged.verdict == "drift" || judged.verdict == "stale_target" || judged.verdict == "not_worth_it";
  if (alarm && !options.on_drift.empty()) {
    const std::string alarm_key = package->digest + " " + judged.verdict + (stale.empty() ? "" : " " + stale);
    result.json["trigger"] = run_trigger(state, options, alarm_key, result, clock);
  }
  result.json["seconds"] = clock.seconds() - started;
  return result;
}

}  // namespace specdec::monitor
