#include "monitor/detector.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/error.h"

namespace specdec::monitor {

namespace {

constexpr std::array<double, 3> kBets = {0.25, 0.5, 0.9};
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double log_sum_exp(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kMinusInfinity ? a : a + std::log1p(std::exp(b - a));
}

StratumBaseline baseline_of(const RolloutFigures& rollout, double share) {
  const AcceptanceCounts& counts = rollout.counts;
  StratumBaseline b;
  b.mean = rollout.alpha.value;
  b.standard_error = (rollout.alpha.ci.high - rollout.alpha.ci.low) / (2 * 1.645);  // the report's interval is the two-sided 90 % one
  b.share = share;
  // A position that few steps reached has a mean of its own noise: it takes the one before.
  for (size_t i = 0; i < counts.reached_at.size(); ++i) {
    if (i > 0 && counts.reached_at[i] < 30) break;
    b.overlap.push_back(std::clamp(counts.overlap(i), 0.0, 1.0));
  }
  return b;
}

std::string hex(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

double unhex(const Json& object, const char* key, const std::string& where) {
  const std::string text = json_string(object, key, where, ErrorKind::kData);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || std::isnan(value)) throw Error(ErrorKind::kData, where + ": " + key + ": expected a number, found '" + text + "'");
  return value;
}

constexpr int64_t kMaxCount = int64_t{1} << 53;

Json to_json(const Sums& s) { return {{"n", s.n}, {"x", hex(s.x)}, {"expected", hex(s.expected)}, {"mean", hex(s.mean)}}; }

const Json& member(const Json& o, const char* key, const std::string& where) {
  if (!o.is_object() || !o.contains(key) || !o[key].is_object()) throw Error(ErrorKind::kData, where + ": " + key + ": expected an object");
  return o[key];
}

Sums sums_from_json(const Json& parent, const char* key, const std::string& where) {
  const Json& o = member(parent, key, where);
  const std::string at = where + ": " + key;
  return {json_int(o, "n", 0, kMaxCount, at, ErrorKind::kData), unhex(o, "x", at), unhex(o, "expected", at), unhex(o, "mean", at)};
}

Json to_json(const ShiryaevRoberts& s) {
  return {{"m0", hex(s.log_m[0])}, {"m1", hex(s.log_m[1])}, {"m2", hex(s.log_m[2])}, {"log_sum", hex(s.log_sum)}, {"lowest", hex(s.lowest)},
          {"total", to_json(s.total)}, {"at_change", to_json(s.at_change)}, {"change_time", s.change_time}};
}

ShiryaevRoberts from_json(const Json& o, const std::string& where) {
  ShiryaevRoberts s;
  s.log_m = {unhex(o, "m0", where), unhex(o, "m1", where), unhex(o, "m2", where)};
  s.log_sum = unhex(o, "log_sum", where);
  s.lowest = unhex(o, "lowest", where);
  s.total = sums_from_json(o, "total", where);
  s.at_change = sums_from_json(o, "at_change", where);
  s.change_time = json_int(o, "change_time", -kMaxCount, kMaxCount, where, ErrorKind::kData);
  return s;
}

Json to_json(const Peak& p) {
  return {{"log_evidence", hex(p.log_evidence)}, {"requests", p.requests}, {"time", p.time}, {"stratum", p.stratum},
          {"since_change", to_json(p.since_change)}, {"change_time", p.change_time}, {"change_requests", p.change_requests}};
}

Peak peak_from_json(const Json& o, const std::string& where) {
  Peak p;
  p.log_evidence = unhex(o, "log_evidence", where);
  p.requests = json_int(o, "requests", 0, kMaxCount, where, ErrorKind::kData);
  p.time = json_int(o, "time", -kMaxCount, kMaxCount, where, ErrorKind::kData);
  p.stratum = json_string(o, "stratum", where, ErrorKind::kData);
  p.since_change = sums_from_json(o, "since_change", where);
  p.change_time = json_int(o, "change_time", -kMaxCount, kMaxCount, where, ErrorKind::kData);
  p.change_requests = json_int(o, "change_requests", 0, kMaxCount, where, ErrorKind::kData);
  return p;
}

Sums minus(const Sums& a, const Sums& b) { return {a.n - b.n, a.x - b.x, a.expected - b.expected, a.mean - b.mean}; }

void add_to(Sums& s, const Observation& o, double baseline_mean) {
  ++s.n;
  s.x += o.x;
  s.expected += o.expected;
  s.mean += baseline_mean;
}

}  // namespace

std::map<std::string, StratumBaseline> baselines(const ValidationReport& report) {
  std::map<std::string, StratumBaseline> result;
  int64_t requests = 0;
  for (const SegmentFigure& s : report.segments) requests += s.alpha.n;
  for (const SegmentFigure& s : report.segments)
    if (!s.rollout.counts.reached_at.empty())
      result[s.name] = baseline_of(s.rollout, requests ? static_cast<double>(s.alpha.n) / static_cast<double>(requests) : 0.0);
  if (!report.rollout.counts.reached_at.empty()) result.try_emplace("", baseline_of(report.rollout, result.empty() ? 1.0 : 0.0));
  if (result.empty())
    throw Error(ErrorKind::kData, "the package's validation report has no roll-out, so there is no acceptance to compare with: validate it with "
                                  "--parts acceptance,rollout,speed,lossless and package it again");
  return result;
}

double tolerance(const StratumBaseline& baseline, double wander_sd) {
  return std::max({0.01, 2 * baseline.standard_error, 1.5 * wander_sd});
}

Observation observe(const AcceptanceCounts& counts, const StratumBaseline& baseline, double tolerance) {
  Observation o;
  double overlap = 0, expected = 0;
  for (size_t i = 0; i < counts.reached_at.size() && i < counts.overlap_sum_at.size(); ++i) {
    o.reached += counts.reached_at[i];
    overlap += counts.overlap_sum_at[i];
    expected += static_cast<double>(counts.reached_at[i]) * baseline.overlap[std::min(i, baseline.overlap.size() - 1)];
  }
  if (o.reached == 0) return o;
  o.x = std::clamp(overlap / static_cast<double>(o.reached), 0.0, 1.0);
  o.expected = expected / static_cast<double>(o.reached);
  o.b = std::clamp(o.expected - tolerance, 0.0, 0.999);
  return o;
}

ShiryaevRoberts::ShiryaevRoberts() { log_m.fill(kMinusInfinity); }

void ShiryaevRoberts::add(const Observation& o, double baseline_mean, int64_t time) {
  for (size_t j = 0; j < kBets.size(); ++j) {
    const double log_l = std::log1p(kBets[j] / (1 - o.b) * (o.b - o.x));
    log_m[j] = log_sum_exp(log_m[j], 0.0) + log_l;
    if (j == 1) log_sum += log_l;
  }
  add_to(total, o, baseline_mean);
  if (log_sum < lowest) {
    lowest = log_sum;
    at_change = total;
    change_time = time;
  }
}

Sums ShiryaevRoberts::since_change() const { return minus(total, at_change); }

double ShiryaevRoberts::log_evidence() const {
  double total = kMinusInfinity;
  for (const double m : log_m) total = log_sum_exp(total, m);
  return total - std::log(static_cast<double>(kBets.size()));
}

Detector::Detector(std::map<std::string, StratumBaseline> baselines, double wander_sd) : baselines_(std::move(baselines)), wander_sd_(wander_sd) {
  for (const auto& [name, baseline] : baselines_) strata_[name];
}

bool Detector::add(const std::string& stratum, const AcceptanceCounts& counts, int64_t time) {
  auto found = baselines_.find(stratum);
  if (found == baselines_.end()) found = baselines_.find("");
  if (found == baselines_.end()) return false;
  const Observation o = observe(counts, found->second, tolerance(found->second, wander_sd_));
  if (o.reached < kMinReached) return false;
  strata_[found->first].add(o, found->second.mean, time);
  pooled_.add(o, found->second.mean, time);
  if (const double now = log_evidence(); now > peak_.log_evidence) {
    const std::string guilty = guilty_stratum();
    const ShiryaevRoberts& stream = guilty.empty() ? pooled_ : strata_.at(guilty);
    peak_ = {now, pooled_.total.n, time, guilty, stream.since_change(), stream.change_time, pooled_.total.n - stream.since_change().n};
    if (!guilty.empty()) peak_.change_requests = stream.at_change.n;
  }
  return true;
}

double Detector::tolerance_of(const std::string& stratum) const { return tolerance(baselines_.at(stratum), wander_sd_); }

double Detector::log_evidence() const {
  double total = pooled_.log_evidence() + std::log(0.5);
  const double weight = std::log(0.5 / static_cast<double>(std::max<size_t>(strata_.size(), 1)));
  for (const auto& [name, s] : strata_) total = log_sum_exp(total, s.log_evidence() + weight);
  return total;
}

std::string Detector::guilty_stratum() const {
  std::string guilty;
  double largest = pooled_.log_evidence() + std::log(0.5);
  const double weight = std::log(0.5 / static_cast<double>(std::max<size_t>(strata_.size(), 1)));
  for (const auto& [name, s] : strata_)
    if (s.log_evidence() + weight > largest) {
      largest = s.log_evidence() + weight;
      guilty = name;
    }
  return guilty;
}

double Detector::mix_part(bool since_change) const {
  const Sums s = since_change ? pooled_.since_change() : pooled_.total;
  if (s.n == 0) return 0;
  double usual = 0, shares = 0;
  for (const auto& [name, b] : baselines_) {
    usual += b.share * b.mean;
    shares += b.share;
  }
  return shares > 0 ? s.mean / static_cast<double>(s.n) - usual / shares : 0.0;
}

double Detector::within_part(bool since_change) const {
  const Sums s = since_change ? pooled_.since_change() : pooled_.total;
  return s.n > 0 ? (s.x - s.expected) / static_cast<double>(s.n) : 0.0;
}

Json Detector::state() const {
  Json strata = Json::object();
  for (const auto& [name, s] : strata_) strata[name] = to_json(s);
  return {{"schema", "specdec.detector/1"}, {"pooled", to_json(pooled_)}, {"strata", strata}, {"peak", to_json(peak_)}};
}

void Detector::restore(const Json& state, const std::string& where) {
  require_schema(state, "detector", 1, where);
  pooled_ = from_json(member(state, "pooled", where), where + ": pooled");
  for (const auto& [name, value] : member(state, "strata", where).items())
    if (strata_.count(name)) strata_[name] = from_json(value, where + ": " + name);
  peak_ = peak_from_json(member(state, "peak", where), where + ": peak");
}

}  // namespace specdec::monitor
