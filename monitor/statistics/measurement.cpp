#include "monitor/statistics/measurement.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace specdec::monitor {

namespace {

constexpr double kMost = 1e15;

// Clamps large values and replaces infinities and NaN by 0, because JSON cannot represent infinity.
double finite(double value) { return std::isfinite(value) ? std::clamp(value, -kMost, kMost) : 0; }
double log10_of(double natural) { return finite(natural / std::log(10.0)); }

Json sums_json(const MeasuredSums& s) { return {s.n, finite(s.acceptance), finite(s.expected), finite(s.tolerance)}; }
MeasuredSums sums_from_json(const Json& list, const std::string& where) {
  const auto number = [&](size_t i) {
    if (!list.is_array() || list.size() < 4 || !list[i].is_number() || std::abs(list[i].get<double>()) > kMost)
      throw Error(ErrorKind::kData, where + ": a measurement without its sums");
    return list[i].get<double>();
  };
  return {static_cast<int64_t>(number(0)), number(1), number(2), number(3)};
}

void add(MeasuredSums& to, const MeasuredSums& sums) {
  to.n += sums.n;
  to.acceptance += sums.acceptance;
  to.expected += sums.expected;
  to.tolerance += sums.tolerance;
}
// Returns now − before. If `now` has fewer requests, the sums were reset in between, and `now` itself is the
// difference.
MeasuredSums since(const MeasuredSums& before, const MeasuredSums& now) {
  if (now.n < before.n) return now;
  return {now.n - before.n, now.acceptance - before.acceptance, now.expected - before.expected,
          now.tolerance - before.tolerance};
}
template <class Map>
const typename Map::mapped_type& at(const Map& map, const std::string& name) {
  static const typename Map::mapped_type kNone{};
  const auto found = map.find(name);
  return found == map.end() ? kNone : found->second;
}

double real(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_number() ? finite(found->get<double>()) : 0;
}
const Json& list(const Json& object, const char* key) {
  static const Json kNone = Json::array();
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : kNone;
}
std::string text(const Json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return object.is_object() && found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

void keep_largest(std::map<std::string, MeasuredDomain>& domains) {
  while (domains.size() > Measurement::kMostDomains)
    domains.erase(std::min_element(domains.begin(), domains.end(),
                                   [](const auto& a, const auto& b) { return a.second.sums.n < b.second.sums.n; }));
}

// Adds the figures measured between `before` and `now` to the period.
void take(Period& period, const Measurement& before, const Measurement& now) {
  period.to = now.time;
  period.log10_e = std::max(period.log10_e, now.log10_e);
  period.log10_alarm = now.log10_alarm;
  add(period.requests, since(before.requests, now.requests));
  for (const auto& [name, domain] : now.domains) {
    MeasuredDomain& to = period.domains[name];
    add(to.sums, since(at(before.domains, name).sums, domain.sums));
    to.log10_e = domain.log10_e;
  }
  for (const auto& [name, sums] : now.counters) add(period.counters[name], since(at(before.counters, name), sums));
}

bool is_empty(const Period& period) {
  return period.requests.n == 0 && std::all_of(period.counters.begin(), period.counters.end(),
                                               [](const auto& counter) { return counter.second.n == 0; });
}

}  // namespace

Measurement measure(const Detector& detector, const std::vector<ChartView>& charts, double level) {
  Measurement m;
  m.log10_alarm = log10_of(level);
  const Sums& all = detector.pooled().total;
  m.log10_e = all.n ? log10_of(detector.log_evidence()) : 0;
  m.requests = {all.n, all.x, all.expected, 0};
  for (const auto& [name, s] : detector.strata()) {
    if (s.total.n == 0) continue;
    const double tolerance = detector.tolerance_of(name) * static_cast<double>(s.total.n);
    m.requests.tolerance += tolerance;
    m.domains[name.empty() ? (detector.strata().size() > 1 ? "other" : "all") : name] = {
        {s.total.n, s.total.x, s.total.expected, tolerance}, log10_of(s.log_evidence())};
  }
  keep_largest(m.domains);
  for (const ChartView& chart : charts)
    if (m.counters.size() < Measurement::kMostDomains)
      m.counters[chart.sources] = {std::llround(std::min(chart.tested, kMost)), chart.tested * chart.acceptance,
                                   chart.tested * chart.expected, 0};
  return m;
}

Measurement measurement_in(const Json& result) {
  Measurement m;
  const Json evidence = result.is_object() ? result.value("evidence", Json::object()) : Json::object();
  m.log10_e = real(evidence, "log10_e");
  m.log10_alarm = real(evidence, "log10_alarm");
  for (const Json& s : list(evidence, "strata")) {
    const double n = real(s, "requests");
    if (n <= 0) continue;
    MeasuredDomain& domain = m.domains[text(s, "name")];
    domain = {{static_cast<int64_t>(n), n * real(s, "acceptance"), n * real(s, "expected"), n * real(s, "tolerance")},
              real(s, "log10_e")};
    add(m.requests, domain.sums);
  }
  keep_largest(m.domains);
  for (const Json& s : list(evidence, "scrapes")) {
    const double n = real(s, "tested_tokens");
    if (n > 0 && m.counters.size() < Measurement::kMostDomains)
      m.counters[text(s, "sources")] = {static_cast<int64_t>(n), n * real(s, "acceptance"), n * real(s, "expected"), 0};
  }
  return m;
}

std::string figures_text(const Measurement& m) {
  Json domains = Json::object(), counters = Json::object();
  for (const auto& [name, domain] : m.domains) {
    domains[name] = sums_json(domain.sums);
    domains[name].push_back(finite(domain.log10_e));
  }
  for (const auto& [name, sums] : m.counters) counters[name] = sums_json(sums);
  return Json({{"log10_e", finite(m.log10_e)},
               {"log10_alarm", finite(m.log10_alarm)},
               {"requests", sums_json(m.requests)},
               {"domains", domains},
               {"counters", counters}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

Measurement measurement_from_text(const std::string& text, const std::string& where) {
  const Json json = parse_json(text, where);
  constexpr double kRange = kMost;
  Measurement m;
  m.log10_e = json_double(json, "log10_e", {-kRange, kRange}, where, ErrorKind::kData);
  m.log10_alarm = json_double(json, "log10_alarm", {-kRange, kRange}, where, ErrorKind::kData);
  m.requests = sums_from_json(json.value("requests", Json()), where);
  for (const auto& [name, list] : json_object(json, "domains", 4096, where, ErrorKind::kData).items())
    m.domains[name] = {sums_from_json(list, where), list.size() > 4 && list[4].is_number() ? list[4].get<double>() : 0};
  for (const auto& [name, list] : json_object(json, "counters", 4096, where, ErrorKind::kData).items())
    m.counters[name] = sums_from_json(list, where);
  return m;
}

std::vector<Period> periods_of(const std::vector<Measurement>& measurements, size_t most) {
  std::vector<Period> periods;
  if (measurements.empty()) return periods;
  const int64_t begin = measurements.front().time, end = std::max(begin, measurements.back().time);
  const int64_t width = std::max<int64_t>(1, (end - begin) / static_cast<int64_t>(std::max<size_t>(most, 1)) + 1);
  Period open;
  bool is_open = false;
  const auto close = [&] {
    if (is_open && !is_empty(open)) periods.push_back(std::move(open));
    open = {};
    is_open = false;
  };
  const Measurement none;
  const Measurement* before = &none;
  for (const Measurement& m : measurements) {
    // Keeps the times of the periods ascending, even if the clock was set back.
    const int64_t newest = is_open ? open.to : periods.empty() ? begin : periods.back().to;
    Measurement now = m;
    now.time = std::max(m.time, newest);
    const bool is_other = is_open && m.epoch != open.epoch;
    const bool is_full = is_open && (now.time - begin) / width != (open.from - begin) / width &&
                         (open.requests.n >= kEnoughRequests || open.requests.n == 0);
    if (is_other || is_full) close();
    if (!is_open) open = {.from = now.time, .to = now.time, .epoch = m.epoch, .log10_e = m.log10_e}, is_open = true;
    take(open, before->epoch == m.epoch ? *before : none, now);
    before = &m;
  }
  close();
  // Each restart of the detectors begins a period, so there may be more than `most` periods. Keeps the newest 2 · most.
  if (periods.size() > 2 * most) periods.erase(periods.begin(), periods.end() - static_cast<std::ptrdiff_t>(2 * most));
  return periods;
}

}  // namespace specdec::monitor
