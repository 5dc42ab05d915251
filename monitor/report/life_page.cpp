#include "monitor/report/life_page.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "base/clock.h"
#include "base/format.h"
#include "base/shell.h"
#include "base/verdict.h"

namespace specdec::monitor {

namespace {

using specdec::Chart;
using specdec::format;
using specdec::Lane;
using specdec::Section;
using specdec::Series;
using specdec::Stretch;
using specdec::Table;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr size_t kMostCurves = 4;       // the most curves in a chart: one per domain or source of counters
constexpr size_t kMostStretches = 400;  // the most coloured bars in one row of a timeline
constexpr size_t kMostRows = 52;        // the most rows in the table of periods

std::string counted(int64_t n, const char* one, const char* many) {
  return std::to_string(n) + " " + (n == 1 ? one : many);
}
std::string day(int64_t time) { return format_utc(time).substr(0, 10); }
// Returns the time without its seconds, "2026-11-21 12:00", with a no-break space.
std::string minute(int64_t time) {
  std::string text = format_utc(time).substr(0, 16);
  if (text.size() > 10 && text[10] == 'T') text.replace(10, 1, "\xC2\xA0");
  return text;
}

double mean(double sum, int64_t n) { return n > 0 ? sum / static_cast<double>(n) : kNone; }
double acceptance(const MeasuredSums& s) { return mean(s.acceptance, s.n); }
double expected(const MeasuredSums& s) { return mean(s.expected, s.n); }
double difference(const MeasuredSums& s) { return mean(s.acceptance - s.expected, s.n); }
double tolerance(const MeasuredSums& s) { return mean(s.tolerance, s.n); }

std::optional<specdec::VerdictClass> class_of_tone(Tone tone) {
  switch (tone) {
    case Tone::kGood:
      return specdec::VerdictClass::kGood;
    case Tone::kOpen:
      return specdec::VerdictClass::kOpen;
    case Tone::kBad:
      return specdec::VerdictClass::kBad;
    case Tone::kPlain:
      break;
  }
  return std::nullopt;
}

// Formats a duration, such as "3.2 d".
std::string span_text(int64_t seconds) {
  const double hours = static_cast<double>(seconds) / 3600;
  if (hours < 48) return decimals(hours, 1) + " h";
  return decimals(hours / 24, hours < 24 * 100 ? 1 : 0) + " d";
}

// Makes a chart with the time axis that all charts of the page have. The axis is at least an hour long.
Chart time_chart(const Life& life, const std::string& title, const std::string& y_label) {
  Chart chart;
  chart.title = title;
  chart.x_label = "time (UTC)";
  chart.y_label = y_label;
  chart.is_time = true;
  const double begin = static_cast<double>(life.begin), end = static_cast<double>(std::max(life.end, life.begin));
  const double room = std::max((end - begin) * 0.01, 1800.0);
  chart.x_min = begin - room;
  chart.x_max = end + room;
  for (const LifeEvent& e : life.events) {
    const bool is_mark = (e.kind == EventKind::kVerdict && e.tone == Tone::kBad) || e.kind == EventKind::kPromotion ||
                         e.kind == EventKind::kRollback || e.kind == EventKind::kPackage;
    if (is_mark)
      chart.marks.push_back({static_cast<double>(e.time), static_cast<double>(e.time), e.what, class_of_tone(e.tone)});
  }
  return chart;
}

// Makes a lane: a row of coloured bars on the time axis, one per span. Bars that would be too short to be seen are
// merged into one, which gets the most serious tone (colour) among them.
Lane lane_of(const std::string& name, const std::vector<LifeSpan>& spans, const Life& life) {
  Lane lane{name, {}};
  const double shortest = static_cast<double>(life.end - life.begin) / static_cast<double>(kMostStretches);
  Tone gravest = Tone::kPlain;
  const bool has_moments = name == "training" || name == "moves";
  for (const LifeSpan& span : spans) {
    // A state that was entered and left within one check is left out, unless it is the last state.
    if (span.to <= span.from && !has_moments && &span != &spans.back()) continue;
    const double from = static_cast<double>(span.from), to = static_cast<double>(std::max(span.to, span.from));
    if (spans.size() > kMostStretches && !lane.stretches.empty() && from - lane.stretches.back().from < shortest) {
      Stretch& last = lane.stretches.back();
      gravest = std::max(gravest, span.tone);
      last.to = to;
      last.name = "changing";
      last.tone = class_of_tone(gravest);
      continue;
    }
    gravest = span.tone;
    lane.stretches.push_back({from, to, span.what, class_of_tone(span.tone)});
  }
  return lane;
}

Chart lanes_chart(const Life& life) {
  Chart chart = time_chart(life, "What was when", "");
  chart.kind = Chart::Kind::kLanes;
  std::vector<LifeSpan> moves;
  for (const LifeEvent& e : life.events)
    if (e.kind == EventKind::kPromotion || e.kind == EventKind::kRollback)
      moves.push_back({e.time, e.time, e.what, e.kind == EventKind::kRollback ? Tone::kBad : e.tone});
  for (const auto& [name, spans] : {std::pair{"verdict", &life.verdicts},
                                    {"state", &life.states},
                                    {"training", &life.trainings},
                                    {"canary", &life.canaries},
                                    {"moves", &std::as_const(moves)},
                                    {"package", &life.packages},
                                    {"target", &life.targets}})
    if (!spans->empty()) chart.lanes.push_back(lane_of(name, *spans, life));
  return chart;
}

// Returns the names of the curves in a chart: the kMostCurves entries of `map` with the largest total weight.
template <class Map, class Weight>
std::vector<std::string> largest(const Life& life, const Map Period::* map, Weight&& weight) {
  std::map<std::string, double> sums;
  for (const Period& p : life.periods)
    for (const auto& [name, entry] : p.*map) sums[name] += weight(entry);
  std::vector<std::string> names;
  for (const auto& [name, sum] : sums)
    if (sum > 0) names.push_back(name);
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& a, const std::string& b) { return sums[a] > sums[b]; });
  if (names.size() > kMostCurves) names.resize(kMostCurves);
  return names;
}
std::vector<std::string> largest_domains(const Life& life) {
  return largest(life, &Period::domains, [](const MeasuredDomain& d) { return static_cast<double>(d.sums.n); });
}
std::vector<std::string> largest_counters(const Life& life) {
  return largest(life, &Period::counters, [](const MeasuredSums& s) { return static_cast<double>(s.n); });
}

// Merges neighbouring periods between two restarts of the detectors (one epoch), so that about `most` periods are left.
std::vector<Period> merged(const std::vector<Period>& periods, size_t most) {
  std::vector<Period> out;
  const size_t stretch = (periods.size() + most - 1) / most;
  size_t joined = 0;
  const auto add = [](MeasuredSums& to, const MeasuredSums& sums) {
    to = {to.n + sums.n, to.acceptance + sums.acceptance, to.expected + sums.expected, to.tolerance + sums.tolerance};
  };
  for (const Period& p : periods) {
    if (out.empty() || joined == stretch || out.back().epoch != p.epoch) {
      out.push_back(p);
      joined = 1;
      continue;
    }
    Period& last = out.back();
    ++joined;
    last.to = p.to;
    last.log10_e = std::max(last.log10_e, p.log10_e);
    last.log10_alarm = p.log10_alarm;
    add(last.requests, p.requests);
    for (const auto& [name, domain] : p.domains) {
      add(last.domains[name].sums, domain.sums);
      last.domains[name].log10_e = domain.log10_e;
    }
  }
  return out;
}

// The name and style of a curve; `colour` is an index of the page's colours.
struct Style {
  std::string name;
  int colour = 0;
  bool dashed = false;
};
template <class Value>
Series curve(const std::vector<Period>& periods, const Style& style, Value&& value) {
  Series series{style.name, {}, {}, {}, style.dashed, style.colour};
  for (const Period& p : periods) series.y.push_back(value(p));
  return series;
}
constexpr int kFirstDomain = 2;  // colour of the first domain; colours 0 and 1 are for all requests and for limits
template <class Map>
const typename Map::mapped_type* entry(const Map& map, const std::string& name) {
  const auto found = map.find(name);
  return found == map.end() ? nullptr : &found->second;
}

void set_times(Chart& chart, const std::vector<Period>& periods) {
  for (const Period& p : periods) chart.x.push_back(static_cast<double>(p.to));
}
bool has_requests(const Life& life) {
  return std::any_of(life.periods.begin(), life.periods.end(), [](const Period& p) { return p.requests.n > 0; });
}

Chart acceptance_chart(const Life& life) {
  Chart chart = time_chart(life, "Acceptance, and what the baseline expects of the same requests", "acceptance");
  const std::vector<Period>& periods = life.periods;
  set_times(chart, periods);
  if (has_requests(life))
    chart.series = {curve(periods, {"acceptance", 0}, [](const Period& p) { return acceptance(p.requests); }),
                    curve(periods, {"expected", 1, true}, [](const Period& p) { return expected(p.requests); }),
                    curve(periods, {"tolerated at least", 5, true},
                          [](const Period& p) { return expected(p.requests) - tolerance(p.requests); })};
  int colour = kFirstDomain;
  for (const std::string& name : largest_counters(life))
    chart.series.push_back(curve(periods, {"counters of " + name, colour++}, [&name](const Period& p) {
      const MeasuredSums* sums = entry(p.counters, name);
      return sums ? acceptance(*sums) : kNone;
    }));
  return chart;
}

Chart evidence_chart(const Life& life) {
  Chart chart = time_chart(life, "Evidence of a drop: log10 of the e-value", "log10 e");
  const std::vector<Period>& periods = life.periods;
  set_times(chart, periods);
  double alarm = 0, peak = 0;
  for (const Period& p : periods) alarm = std::max(alarm, p.log10_alarm), peak = std::max(peak, p.log10_e);
  // Caps the y axis at twice the alarm level, because a few larger values would flatten all smaller ones.
  chart.y_max = std::max(alarm * 1.15, std::min(peak * 1.05, alarm * 2)) + 0.1;
  chart.y_min = 0;
  chart.series = {curve(periods, {"all requests", 0}, [](const Period& p) { return std::max(p.log10_e, 0.0); }),
                  curve(periods, {"alarm", 1, true}, [](const Period& p) { return p.log10_alarm; })};
  int colour = kFirstDomain;
  for (const std::string& name : largest_domains(life))
    chart.series.push_back(curve(periods, {name, colour++}, [&name](const Period& p) {
      const MeasuredDomain* domain = entry(p.domains, name);
      return domain && domain->sums.n > 0 ? std::max(domain->log10_e, 0.0) : kNone;
    }));
  return chart;
}

// Charts the acceptance by domain, over fewer periods than other charts, because a domain has few requests in a period.
Chart domains_chart(const Life& life) {
  Chart chart = time_chart(life, "Acceptance minus expected, by domain", "difference");
  const std::vector<Period> periods = merged(life.periods, kMostRows);
  set_times(chart, periods);
  chart.rule = 0.0;
  chart.rule_name = "as expected";
  int colour = kFirstDomain;
  for (const std::string& name : largest_domains(life))
    chart.series.push_back(curve(periods, {name, colour++}, [&name](const Period& p) {
      const MeasuredDomain* domain = entry(p.domains, name);
      return domain && domain->sums.n >= 10 ? difference(domain->sums) : kNone;
    }));
  return chart;
}

std::vector<std::string> figures(const MeasuredSums& s, double log10_e) {
  return {std::to_string(s.n),    decimals(acceptance(s)), decimals(expected(s)), signed_decimals(difference(s)),
          decimals(tolerance(s)), decimals(log10_e, 1)};
}

Table domains_table(const Measurement& last) {
  Table table{"By domain, since the detectors were last restarted",
              {"domain", "requests", "acceptance", "expected", "difference", "tolerance", "log10 e"},
              {},
              false};
  for (const auto& [name, domain] : last.domains) {
    table.rows.push_back(figures(domain.sums, domain.log10_e));
    table.rows.back().insert(table.rows.back().begin(), name);
  }
  for (const auto& [name, sums] : last.counters) {
    const bool is_compared = sums.expected > 0;
    table.rows.push_back({"counters of " + name, std::to_string(sums.n) + " tokens", decimals(acceptance(sums)),
                          is_compared ? decimals(expected(sums)) : "–",
                          is_compared ? signed_decimals(difference(sums)) : "–", "–", "–"});
  }
  return table;
}

// Makes a table of the charts' figures, for readers who cannot see the charts.
Table periods_table(const Life& life) {
  Table table{"Over time",
              {"until (UTC)", "requests", "acceptance", "expected", "difference", "tolerance", "log10 e"},
              {},
              false};
  for (const Period& p : merged(life.periods, kMostRows)) {
    if (p.requests.n == 0) continue;
    table.rows.push_back(figures(p.requests, p.log10_e));
    table.rows.back().insert(table.rows.back().begin(), minute(p.to));
  }
  return table;
}

Section course_section(const Life& life) {
  Section s{
      "Acceptance over time",
      "Each point is the mean of the requests since the point before. What is expected comes from the baseline, at "
      "the very positions and domains of these requests; acceptance below the tolerated line is evidence of a "
      "drop. An e-value at the alarm level is an alarm, which stays until the detectors are restarted: by another "
      "package, by a probe that refutes it, or by --acknowledge. Vertical lines are alarms, promotions, roll-backs "
      "and other packages.",
      {},
      {}};
  s.charts.push_back(lanes_chart(life));
  if (life.periods.empty()) {
    s.text = "No request has been judged yet, so there is no acceptance to show. " + s.text;
    return s;
  }
  s.charts.push_back(acceptance_chart(life));
  if (has_requests(life)) s.charts.push_back(evidence_chart(life));
  if (largest_domains(life).size() > 1) s.charts.push_back(domains_chart(life));
  return s;
}

Section figures_section(const Life& life) {
  Section s{"Figures", "", {}, {}};
  for (const Measurement& last : life.last) s.tables.push_back(domains_table(last));
  s.tables.push_back(periods_table(life));
  return s;
}

Section events_section(const Life& life, const std::string& state) {
  Section s{"Events", "The newest are first. Times are in UTC.", {}, {}};
  if (life.left_out > 0)
    s.text += " " + counted(life.left_out, "older or milder event is", "older or milder events are") + " left out; " +
              shell_words({"specdec", "monitor", "report", "--state", state}) + " prints all.";
  Table table{"", {"time", "kind", "event", "reason and figures"}, {}, true};
  for (auto e = life.events.rbegin(); e != life.events.rend(); ++e)
    table.rows.push_back({minute(e->time), name(e->kind), e->what, e->reason});
  s.tables.push_back(table);
  return s;
}

std::string check_command(const std::string& state) {
  return "specdec monitor check --package STORE:CHANNEL --source RECORDS --target MODEL --state " +
         shell_words({state});
}

Section next_section(const Life& life, const std::string& state) {
  Section s{"What to run next", "", {}, {}};
  Table table{"", {"what", ""}, {}, true};
  if (life.is_empty())
    s.text = "The state holds no check. Run one, best from cron; the page then shows what it found.";
  else if (life.verdict == to_string(Verdict::kHealthy))
    s.text = "Nothing needs to be done: keep checking.";
  const std::string advice = advice_of(life);
  table.rows.push_back({"command", advice.empty() ? check_command(state) : advice});
  for (const std::string& line : life.to_do) table.rows.push_back({"not ended", line});
  for (const std::string& line : life.waiting) table.rows.push_back({"waiting", line});
  s.tables.push_back(table);
  return s;
}

void add_tiles(const Life& life, specdec::Page& page) {
  const LifeCounts& c = life.counts;
  const auto add = [&](const char* name, const std::string& value, const std::string& note) {
    page.tiles.push_back({name, value, note});
  };
  add("Watched for", span_text(life.end - life.begin), day(life.begin) + " to " + day(life.end));
  add("State", name(life.memory.stage), life.memory.since > 0 ? "since " + minute(life.memory.since) : "");
  for (const Measurement& last : life.last) {
    if (last.requests.n == 0) continue;
    add("Acceptance", decimals(acceptance(last.requests)),
        "expected " + decimals(expected(last.requests)) + ", " + counted(last.requests.n, "request", "requests"));
    add("Evidence", decimals(last.log10_e, 1), "log10 of the e-value, alarm at " + decimals(last.log10_alarm, 1));
  }
  add("Alarms", std::to_string(c.alarms), counted(c.false_alarms, "was false", "were false"));
  add("Redistillations", std::to_string(c.trainings),
      c.failed_trainings ? std::to_string(c.failed_trainings) + " failed" : "none failed");
  add("Canaries", std::to_string(c.canaries), counted(c.lost_canaries, "candidate lost", "candidates lost"));
  add("Promotions", std::to_string(c.promotions), counted(c.rollbacks, "roll-back", "roll-backs"));
  add("Target changes", std::to_string(c.target_changes), "");
}

}  // namespace

std::string advice_of(const Life& life) {
  const bool is_look =
      life.next.starts_with("specdec monitor status") || life.next.starts_with("specdec monitor report");
  return is_look ? "" : life.next;
}

std::string life_summary(const Life& life) {
  const LifeCounts& c = life.counts;
  if (life.is_empty()) return "no check is recorded";
  return "watched for " + span_text(life.end - life.begin) + " since " + format_utc(life.begin) + ": " +
         counted(c.alarms, "alarm", "alarms") + " (" + std::to_string(c.false_alarms) + " false), " +
         counted(c.trainings, "redistillation", "redistillations") + " (" + std::to_string(c.failed_trainings) +
         " failed), " + counted(c.canaries, "canary", "canaries") + ", " +
         counted(c.promotions, "promotion", "promotions") + ", " + counted(c.rollbacks, "roll-back", "roll-backs") +
         ", " + counted(c.target_changes, "target change", "target changes");
}

specdec::Page life_page(const Life& life, const std::string& state) {
  specdec::Page page;
  page.title = "A draft's life";
  page.generator = "specdec monitor report";
  page.data = to_json(life);
  const auto verdict = verdict_named(life.verdict);
  page.verdict = verdict ? readable(life.verdict) : "no verdict";
  page.verdict_class = verdict ? specdec::class_of(*verdict) : specdec::VerdictClass::kOpen;
  if (life.is_empty()) {
    page.reason = "no check is recorded in " + state;
    page.sections = {next_section(life, state)};
    return page;
  }
  page.reason = verdict ? life.reason + (life.checked.empty() ? "" : " (checked " + life.checked + ")")
                        : "the detectors were restarted, and no check has judged since";
  add_tiles(life, page);
  page.sections = {next_section(life, state), course_section(life), events_section(life, state)};
  if (!life.periods.empty()) page.sections.push_back(figures_section(life));
  return page;
}

}  // namespace specdec::monitor
