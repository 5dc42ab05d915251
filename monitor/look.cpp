#include "monitor/look.h"

#include <algorithm>
#include <cmath>

#include "base/file.h"
#include "monitor/counter_chart.h"
#include "monitor/payback.h"

namespace specdec::monitor {

namespace {

constexpr int64_t kEnoughRequests = 50;   // below it the verdict is inconclusive, unless there is an alarm already
constexpr double kWarnLevel = 1000;       // e-value of the amber light: a false one in 1,000 requests at most
constexpr int64_t kEnoughForSpeed = 200;
constexpr double kBucketsADay = 288;     // a look every five minutes is what a false alarm of the counters is counted in

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
        } else if (r.counts.drafted == 0) {
          ++look.not_drafted;
        } else if (const Baseline::Stratum* stratum = detector.baseline().find(stratum_key(r))) {
          ++(detector.add(*stratum, r.counts, r.time) ? look.watched : look.too_short);
        } else if (++look.no_baseline == 1) {
          look.first_without_baseline = stratum_key(r);
        }
      });
      state.set_position(identity, position);
      look.read.records += figures.records;
      look.read.broken_lines += figures.broken_lines;
      if (look.read.first_problem.empty()) look.read.first_problem = figures.first_problem;
    }
  }
  if (look.not_drafted > 0)
    look.notes.push_back(std::to_string(look.not_drafted) + " new requests were decoded without the draft, which says nothing of its acceptance: their server found that it does not pay "
                         "(its dashboard and /metrics say why), or speculation is off");
  if (look.no_baseline > 0)
    look.notes.push_back(std::to_string(look.no_baseline) + " new requests are of conditions that were never measured (such as '" +
                               look.first_without_baseline + "') and are not judged: see monitor baseline");
  if (look.other_target > 0)
    look.chart_notes.push_back(std::to_string(look.other_target) + " new records of this draft were made beside another target");
}

// A page that names its models must be about this package's. Engines of others do not say.
bool is_of(const Counters& page, const PackageManifest& manifest) {
  return (page.draft.empty() || manifest.draft.id.starts_with(page.draft)) && (page.target.empty() || manifest.target.id.starts_with(page.target));
}

// All pages together are one process: replicas of a model are summed, a bucket a look. Reads before it writes: a page that fails leaves
// all as it was.
void read_servers(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report, State& state, Look& look) {
  const std::string epoch = state.value("epoch") + " ";   // what was counted beside another package is no base
  std::vector<std::pair<std::string, Counters>> scraped;
  std::map<std::string, std::pair<Counters, std::string>> buckets;   // by engine: sum of the differences, and whose they are
  for (const std::string& url : options.sources) {
    if (!is_url(url)) continue;
    Counters now = read_counters(url, options.api_key, options.model);
    if (!now.any) {
      look.chart_notes.push_back(url + " has no speculation series (absent is not zero): is speculation on?");
    } else if (!is_of(now, package.manifest)) {
      look.chart_notes.push_back(url + " serves another pair than the package's: its counters are not judged");
    } else {
      const std::string name = epoch + url;
      auto& [sum, urls] = buckets[now.engine];
      const std::optional<Counters> before = state.counters(name);
      if (before && !before->series.empty()) {
        sum.add(difference(now, *before));
        urls += (urls.empty() ? "" : ", ") + url;
      } else {
        state.set_counters(name, now);
      }
      scraped.emplace_back(name, std::move(now));
    }
  }
  for (const auto& [engine, bucket] : buckets) {
    const auto& [sum, urls] = bucket;
    CounterChart chart(report.rollout, options.false_alarm_every_days * kBucketsADay);
    const std::string key = "chart " + epoch + engine;
    if (const std::string old = state.value(key); !old.empty()) chart.restore(parse_json(old, "chart"), "chart");
    // A bucket that is too small to be judged grows: the difference to the same scrapes is taken again next time.
    if (!urls.empty() && chart.add(sum))
      for (const auto& [name, now] : scraped)
        if (now.engine == engine) state.set_counters(name, now);
    state.set_value(key, chart.state().dump());
    look.chart_buckets = std::max(look.chart_buckets, chart.buckets());
    const std::string where = (urls.empty() ? engine : urls) + ": ";
    if (!chart.alarm().empty()) look.chart_alarms.push_back(where + chart.alarm());
    if (!chart.note().empty()) look.chart_notes.push_back(where + chart.note());
  }
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

Json mix_json(const Detector& detector) {
  const MixTest test = detector.mix_test();
  return {{"requests", test.requests}, {"g", test.g}, {"p_value", test.p_value}, {"psi", test.psi}};
}

Json amber_json(const Detector& detector) {
  const Amber& amber = detector.amber();
  if (amber.limit == 0) return nullptr;   // no stratum was measured on enough requests
  return {{"cusum", amber.cusum}, {"limit", amber.limit}, {"on", amber.on()}};
}

}  // namespace

double speedup_now(const ValidationReport& report, const Detector& detector) {
  if (detector.pooled().total.n < kEnoughForSpeed) return 0;
  const bool since_change = detector.pooled().since_change().n >= kEnoughForSpeed;
  return speedup_at(report, detector.within_part(since_change) + detector.mix_part(since_change));
}

double alarm_level(double requests_per_day, double false_alarm_every_days) {
  return std::log(requests_per_day > 0 ? std::max(requests_per_day * false_alarm_every_days, 100.0) : 1e6);
}

Detector make_detector(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report) {
  const double requests = std::exp(alarm_level(options.requests_per_day, options.false_alarm_every_days));
  if (options.baseline.empty())
    return with_context(options.package + ": manifest.json: report", [&] { return Detector(baselines(report), options.wander_sd, requests); });
  Baseline baseline = baseline_from_json(read_json(options.baseline), options.baseline);
  const PackageManifest& manifest = package.manifest;
  if (!manifest.draft.id.starts_with(baseline.draft) || !manifest.target.id.starts_with(baseline.target))
    throw Error(ErrorKind::kData, options.baseline + ": measured with draft " + baseline.draft + " beside target " + baseline.target + ", the package has " +
                                      manifest.draft.id.substr(0, 12) + " and " + manifest.target.id.substr(0, 12) + ": run monitor baseline again");
  return Detector(std::move(baseline), options.wander_sd, requests);
}

EstimatedBaseline measure_baseline(const std::vector<std::string>& sources, const ResolvedPackage& package) {
  const std::string draft = package.manifest.draft.id.substr(0, 12), target = package.manifest.target.id.substr(0, 12);
  for (const std::string& source : sources)
    if (is_url(source)) throw Error(ErrorKind::kUsage, "--source: " + source + ": a baseline needs requests, expected acceptance records (a file or a directory)");
  EstimatedBaseline result = estimate_baseline([&](const auto& take) {
    for (const std::string& source : sources)
      for (const fs::path& file : record_files(source)) {
        FilePosition position;
        read_records(file, file_identity(file), position, [&](const AcceptanceRecord& r) {
          if ((r.draft.empty() || r.draft == draft) && (r.target.empty() || r.target == target)) take(r);
        });
      }
  });
  result.baseline.draft = draft;
  result.baseline.target = target;
  return result;
}

Look take_look(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report, State& state, Detector& detector) {
  Look look;
  read_source_files(options, package, state, detector, look);
  read_servers(options, package, report, state, look);
  return look;
}

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
  if (const double s = speedup_now(report, detector); s > 0 && s <= 1.0) {
    std::snprintf(text, sizeof text, "at today's acceptance no K is faster than plain decoding: speed-up %.2f, %.2f when it was validated", s,
                  report.speedup.value);
    return {"not_worth_it", text};
  }
  if (log_e >= std::log(kWarnLevel)) {
    std::snprintf(text, sizeof text, "evidence of a drop is growing (e-value %.0f)", std::exp(std::min(log_e, 40.0)));
    return {"warn", text};
  }
  if (detector.amber().on()) {
    std::snprintf(text, sizeof text, "early warning: acceptance is lower than it was (CUSUM %.1f > %.1f)", detector.amber().cusum, detector.amber().limit);
    return {"warn", text};
  }
  if (!look.chart_notes.empty()) return {"warn", look.chart_notes.front()};
  if (detector.pooled().total.n < kEnoughRequests && look.chart_buckets < CounterChart::kPhaseOne)
    return {"inconclusive", "too little data: " + std::to_string(detector.pooled().total.n) + " requests watched, " + std::to_string(kEnoughRequests) + " needed" +
                                (look.notes.empty() ? "" : "; " + look.notes.front())};
  if (detector.pooled().total.n == 0) return {"healthy", std::to_string(look.chart_buckets) + " scrapes of counters judged, no drop"};
  std::snprintf(text, sizeof text, "%lld requests watched, acceptance %+.3f within strata and %+.3f by mix against the baseline",
                static_cast<long long>(detector.pooled().total.n), detector.within_part(false), detector.mix_part(false));
  return {"healthy", text};
}

Json evidence_json(const CheckOptions& options, const Detector& detector, const Look& look) {
  const Peak& peak = detector.peak();
  const double level = alarm_level(options.requests_per_day, options.false_alarm_every_days);
  const bool drift = peak.log_evidence >= level;
  Json notes = look.chart_notes;
  for (const std::string& note : look.notes) notes.push_back(note);
  Json e = {{"requests", detector.pooled().total.n},
            {"new_records", look.read.records},
            {"watched", look.watched},
            {"too_short", look.too_short},
            {"not_drafted", look.not_drafted},
            {"without_baseline", look.no_baseline},
            {"of_another_draft", look.other_draft},
            {"of_another_target", look.other_target},
            {"broken_lines", look.read.broken_lines},
            {"log10_e", detector.pooled().total.n ? detector.log_evidence() / std::log(10.0) : 0.0},
            {"log10_e_peak", detector.pooled().total.n ? peak.log_evidence / std::log(10.0) : 0.0},
            {"log10_alarm", level / std::log(10.0)},
            {"mix_part", detector.mix_part(drift)},
            {"within_part", detector.within_part(drift)},
            {"strata", strata_json(detector)},
            {"mix", mix_json(detector)},
            {"amber", amber_json(detector)},
            {"counter_alarms", look.chart_alarms},
            {"notes", notes}};
  if (!look.read.first_problem.empty()) e["first_broken_line"] = look.read.first_problem;
  // The best guess: the start whose single-start product is the largest.
  if (drift)
    e["change_point"] = {{"stratum", peak.stratum}, {"after_requests", peak.change_requests}, {"time", format_utc(peak.change_time)}};
  return e;
}

}  // namespace specdec::monitor
