// Judges an observation: returns the verdict with the figure that decided it, and the evidence as JSON.
#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "monitor/facts/payback.h"
#include "monitor/observation.h"
#include "monitor/statistics/counter_chart.h"
#include "monitor/statistics/measurement.h"

namespace specdec::monitor {

namespace {

constexpr double kWarnLevel = 1000;  // e-value for a warning; at most one false warning per 1,000 requests on average
constexpr int64_t kEnoughForSpeed = 200;

Json strata_json(const Detector& detector) {
  const auto mean = [](double sum, int64_t n) { return n ? Json(sum / static_cast<double>(n)) : Json(nullptr); };
  Json strata = Json::array();
  for (const auto& [name, s] : detector.strata()) {
    const StratumBaseline& b = detector.baselines().at(name);
    // Skips the stratum "other" (requests of no known domain) if it has no requests.
    if (name.empty() && s.total.n == 0 && detector.strata().size() > 1) continue;
    const Sums since = s.since_change();
    strata.push_back({{"name", name.empty() ? (detector.strata().size() > 1 ? "other" : "all") : name},
                      {"requests", s.total.n},
                      {"baseline", b.mean},
                      {"tolerance", detector.tolerance_of(name)},
                      {"acceptance", mean(s.total.x, s.total.n)},
                      {"difference", mean(s.total.x - s.total.expected, s.total.n)},
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
  if (amber.limit == 0) return nullptr;  // the baseline has too few requests for the early warning
  return {{"cusum", amber.cusum}, {"limit", amber.limit}, {"on", amber.on()}};
}

MonitorFigure figure_of(const ChartView& chart) {
  MonitorFigure figure = {"scrapes", chart.judged, CounterChart::kPhaseOne};
  if (chart.tested > 0) figure.acceptance = chart.acceptance;
  if (chart.expected > 0) figure.expected = chart.expected;
  figure.tested_tokens = chart.tested;
  return figure;
}

Json charts_json(const Observation& observation) {
  Json charts = Json::array();
  for (const ChartView& chart : observation.charts) {
    Json view = json_of(figure_of(chart));
    view.erase("name");
    view["sources"] = chart.sources;
    charts.push_back(std::move(view));
  }
  return charts;
}

double mean_of(double sum, int64_t n) { return sum / static_cast<double>(std::max<int64_t>(n, 1)); }

}  // namespace

double speedup_now(const ValidationReport& report, const Detector& detector) {
  if (detector.pooled().total.n < kEnoughForSpeed) return 0;
  const bool since_change = detector.pooled().since_change().n >= kEnoughForSpeed;
  return speedup_at(report, detector.within_part(since_change) + detector.mix_part(since_change));
}

double alarm_level(double requests_per_day, double false_alarm_every_days) {
  return std::log(requests_per_day > 0 ? std::max(requests_per_day * false_alarm_every_days, 100.0) : 1e6);
}

namespace {

Judged drift(const Peak& peak, double level) {
  const Sums& since = peak.since_change;
  const double observed = mean_of(since.x, since.n), expected = mean_of(since.expected, since.n);
  return {Verdict::kDrift,
          format("acceptance has dropped%s%s: %.3f in %lld requests since the change, %.3f expected (e-value 1e%.1f, "
                 "alarm at 1e%.1f)",
                 peak.stratum.empty() ? "" : ", most in ", peak.stratum.c_str(), observed,
                 static_cast<long long>(since.n), expected, peak.log_evidence / std::log(10.0), level / std::log(10.0)),
          MonitorFigure{"log10_e", peak.log_evidence / std::log(10.0), level / std::log(10.0), observed, expected,
                        since.n}};
}

std::string of_chart(const ChartView& chart) {
  if (chart.tested == 0) return "";
  return format(": acceptance %.3f", chart.acceptance) +
         (chart.expected > 0 ? format(", expected %.3f", chart.expected) : "") +
         format(", over %.0f tested tokens", chart.tested);
}

const ChartView* furthest(const Observation& observation) {
  const auto found = std::max_element(observation.charts.begin(), observation.charts.end(),
                                      [](const ChartView& a, const ChartView& b) { return a.judged < b.judged; });
  return found == observation.charts.end() ? nullptr : &*found;
}

// Returns the first note of each kind, each with "; " before it.
std::string first_notes(const Observation& o) {
  std::string text;
  if (!o.set_aside.empty()) text += "; set aside: " + o.set_aside.front();
  for (const std::vector<std::string>* notes : {&o.chart_notes, &o.silent_pages, &o.notes})
    if (!notes->empty()) text += "; " + notes->front();
  return text;
}

// Returns an inconclusive verdict that says how much data each kind of source still lacks.
Judged inconclusive(const CheckOptions& options, const Detector& detector, const Observation& observation) {
  if (options.sources.empty())
    return {Verdict::kInconclusive,
            "no source is given (--source): acceptance is not watched, only the target is compared",
            MonitorFigure{"sources", 0, 1}};
  const int64_t requests = detector.pooled().total.n;
  std::string text;
  MonitorFigure figure = {"requests", requests, kEnoughRequests};
  if (observation.records_sources > 0 || requests > 0)
    text = std::to_string(requests) + " of " + std::to_string(kEnoughRequests) + " requests judged";
  if (observation.pages > 0) {
    const ChartView none, *chart = furthest(observation);
    if (!chart) chart = &none;
    text += (text.empty() ? "" : ", ") + std::to_string(chart->judged) + " of " +
            std::to_string(CounterChart::kPhaseOne) + " scrapes judged" + of_chart(*chart);
    if (chart->waiting > 0)
      text += format("; %.0f of %.0f tested tokens of the next judgement", chart->waiting, CounterChart::kMinTested);
    if (observation.records_sources == 0) figure = figure_of(*chart);
  }
  return {Verdict::kInconclusive, "too little data: " + text + first_notes(observation), figure};
}

// Returns an inconclusive verdict for sources whose recent traffic could not be judged: the evidence is too old.
Judged too_old(const Observation& observation) {
  const EvidenceAge& age = *observation.age;
  return {Verdict::kInconclusive,
          "nothing was judged since " + format_utc(age.since()) + ", in " + std::to_string(age.unjudged()) +
              " looks at traffic that cannot be judged" + first_notes(observation),
          MonitorFigure{"unjudged_looks", age.unjudged(), EvidenceAge::kMostUnjudged}};
}

Judged healthy(const Detector& detector, const Observation& observation, double level) {
  const Sums& all = detector.pooled().total;
  const std::string age = observation.age ? observation.age->text() : "";
  if (all.n < kEnoughRequests) {
    const ChartView& chart = *furthest(observation);
    return {Verdict::kHealthy,
            std::to_string(chart.judged) + " scrapes of counters judged, no drop" + of_chart(chart) + age,
            figure_of(chart)};
  }
  const double observed = mean_of(all.x, all.n), expected = mean_of(all.expected, all.n),
               log_e = detector.log_evidence();
  return {Verdict::kHealthy,
          format("%lld requests judged: acceptance %.3f, expected %.3f (%+.3f within strata, %+.3f by mix; e-value "
                 "1e%.1f, alarm at 1e%.1f)",
                 static_cast<long long>(all.n), observed, expected, detector.within_part(false),
                 detector.mix_part(false), log_e / std::log(10.0), level / std::log(10.0)) +
              age,
          MonitorFigure{"log10_e", log_e / std::log(10.0), level / std::log(10.0), observed, expected, all.n}};
}

}  // namespace

Judged judge(const CheckOptions& options, const Detector& detector, const ValidationReport& report,
             const Observation& observation) {
  const double log_e = detector.log_evidence(),
               level = alarm_level(options.requests_per_day, options.false_alarm_every_days);
  if (detector.peak().log_evidence >= level) return drift(detector.peak(), level);
  const ChartView* chart = furthest(observation);
  if (!observation.chart_alarms.empty())
    return {Verdict::kDrift, observation.chart_alarms.front(), chart ? std::optional(figure_of(*chart)) : std::nullopt};
  if (const double s = speedup_now(report, detector); s > 0 && s <= 1.0)
    return {
        Verdict::kNotWorthIt,
        format("at today's acceptance no K is faster than plain decoding: speed-up %.2f, %.2f when it was validated", s,
               report.speedup.value),
        MonitorFigure{.name = "speedup", .value = s, .limit = 1, .validated = report.speedup.value}};
  if (log_e >= std::log(kWarnLevel))
    return {Verdict::kWarn,
            format("evidence of a drop is growing (e-value %.0f, alarm at 1e%.1f)", std::exp(std::min(log_e, 40.0)),
                   level / std::log(10.0)),
            MonitorFigure{"log10_e", log_e / std::log(10.0), level / std::log(10.0)}};
  if (const Amber& amber = detector.amber(); amber.on())
    return {Verdict::kWarn,
            format("early warning: acceptance is lower than it was (CUSUM %.1f > %.1f)", amber.cusum, amber.limit),
            MonitorFigure{"cusum", amber.cusum, amber.limit}};
  // The verdict is inconclusive if too little data was judged, or none for too long. If a source or a chart has a
  // problem now, an engine without counters in this check is represented by the scrapes that earlier checks judged.
  const bool is_disturbed = !observation.set_aside.empty() || !observation.chart_notes.empty();
  if (detector.pooled().total.n < kEnoughRequests && observation.chart_buckets() < CounterChart::kPhaseOne &&
      !(is_disturbed && observation.recalled_buckets >= CounterChart::kPhaseOne))
    return inconclusive(options, detector, observation);
  if (observation.age && observation.age->is_too_old()) return too_old(observation);
  if (!observation.set_aside.empty())
    return {Verdict::kWarn, "a source is set aside: " + observation.set_aside.front(),
            MonitorFigure{"sources_set_aside", observation.set_aside.count(), 0}};
  if (!observation.chart_notes.empty())
    return {Verdict::kWarn, observation.chart_notes.front(),
            chart ? figure_of(*chart) : MonitorFigure{"scrapes", 0, CounterChart::kPhaseOne}};
  if (!observation.silent_pages.empty())
    return {Verdict::kWarn, observation.silent_pages.front(),
            MonitorFigure{"silent_pages", observation.silent_pages.size(), 0}};
  return healthy(detector, observation, level);
}

Json evidence_json(const CheckOptions& options, const Detector& detector, const Observation& observation) {
  const Peak& peak = detector.peak();
  const double level = alarm_level(options.requests_per_day, options.false_alarm_every_days);
  const bool drift = peak.log_evidence >= level;
  Json notes = observation.chart_notes;
  for (const std::string& note : observation.silent_pages) notes.push_back(note);
  for (const std::string& note : observation.notes) notes.push_back(note);
  Json e = {{"requests", detector.pooled().total.n},
            {"new_records", observation.read.records},
            {"watched", observation.requests.watched},
            {"too_short", observation.requests.too_short},
            {"not_drafted", observation.requests.not_drafted},
            {"without_baseline", observation.requests.no_baseline},
            {"of_another_draft", observation.requests.other_draft},
            {"of_another_target", observation.requests.other_target},
            {"without_target", observation.requests.no_target},
            {"broken_lines", observation.read.broken_lines},
            {"log10_e", detector.pooled().total.n ? detector.log_evidence() / std::log(10.0) : 0.0},
            {"log10_e_peak", detector.pooled().total.n ? peak.log_evidence / std::log(10.0) : 0.0},
            {"log10_alarm", level / std::log(10.0)},
            {"mix_part", detector.mix_part(drift)},
            {"within_part", detector.within_part(drift)},
            {"strata", strata_json(detector)},
            {"mix", mix_json(detector)},
            {"amber", amber_json(detector)},
            {"counter_alarms", observation.chart_alarms},
            {"notes", notes},
            {"scrapes", charts_json(observation)},
            {"sources",
             {{"given", options.sources.size()},
              {"records", observation.records_sources},
              {"pages", observation.pages},
              {"set_aside", observation.set_aside.lines()}}}};
  if (observation.age)
    e["unjudged"] = {{"looks", observation.age->unjudged()},
                     {"limit", EvidenceAge::kMostUnjudged},
                     {"since", format_utc(observation.age->since())}};
  if (!observation.read.first_problem.empty()) e["first_broken_line"] = observation.read.first_problem;
  // The change point is the request from which on acceptance was lower, estimated as in ShiryaevRoberts::Start.
  if (drift)
    e["change_point"] = {
        {"stratum", peak.stratum}, {"after_requests", peak.change_requests}, {"time", format_utc(peak.change_time)}};
  return e;
}

}  // namespace specdec::monitor
