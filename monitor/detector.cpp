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

StratumBaseline baseline_of(const Estimate& alpha, const AcceptanceCounts& counts, double share) {
  StratumBaseline b;
  b.mean = alpha.value;
  b.standard_error = (alpha.ci.high - alpha.ci.low) / (2 * 1.645);  // the report's interval is the two-sided 90 % one
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

Json to_json(const ShiryaevRoberts& s) {
  return {{"m0", hex(s.log_m[0])}, {"m1", hex(s.log_m[1])}, {"m2", hex(s.log_m[2])}, {"log_sum", hex(s.log_sum)}, {"lowest", hex(s.lowest)},
          {"n", s.n},              {"lowest_n", s.lowest_n}, {"lowest_time", s.lowest_time}, {"sum_x", hex(s.sum_x)}, {"sum_b", hex(s.sum_b)}};
}

ShiryaevRoberts from_json(const Json& o, const std::string& where) {
  constexpr int64_t kMax = int64_t{1} << 53;
  ShiryaevRoberts s;
  s.log_m = {unhex(o, "m0", where), unhex(o, "m1", where), unhex(o, "m2", where)};
  s.log_sum = unhex(o, "log_sum", where);
  s.lowest = unhex(o, "lowest", where);
  s.n = json_int(o, "n", 0, kMax, where, ErrorKind::kData);
  s.lowest_n = json_int(o, "lowest_n", 0, kMax, where, ErrorKind::kData);
  s.lowest_time = json_int(o, "lowest_time", -kMax, kMax, where, ErrorKind::kData);
  s.sum_x = unhex(o, "sum_x", where);
  s.sum_b = unhex(o, "sum_b", where);
  return s;
}

}  // namespace

std::map<std::string, StratumBaseline> baselines(const ValidationReport& report) {
  std::map<std::string, StratumBaseline> result;
  int64_t requests = 0;
  for (const SegmentFigure& s : report.segments) requests += s.alpha.n;
  for (const SegmentFigure& s : report.segments)
    if (!s.rollout.counts.reached_at.empty())
      result[s.name] = baseline_of(s.alpha, s.rollout.counts, requests ? static_cast<double>(s.alpha.n) / static_cast<double>(requests) : 0.0);
  if (result.empty() && !report.rollout.counts.reached_at.empty()) result[""] = baseline_of(report.alpha, report.rollout.counts, 1.0);
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
  o.b = std::clamp(expected / static_cast<double>(o.reached) - tolerance, 0.0, 0.999);
  return o;
}

ShiryaevRoberts::ShiryaevRoberts() { log_m.fill(kMinusInfinity); }

void ShiryaevRoberts::add(const Observation& o, int64_t time) {
  for (size_t j = 0; j < kBets.size(); ++j) {
    const double log_l = std::log1p(kBets[j] / (1 - o.b) * (o.b - o.x));
    log_m[j] = log_sum_exp(log_m[j], 0.0) + log_l;
    if (j == 1) log_sum += log_l;
  }
  ++n;
  if (log_sum < lowest) {
    lowest = log_sum;
    lowest_n = n;
    lowest_time = time;
  }
  sum_x += o.x;
  sum_b += o.b;
}

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
  strata_[found->first].add(o, time);
  pooled_.add(o, time);
  return true;
}

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

double Detector::mix_part() const {
  double part = 0;
  if (pooled_.n > 0)
    for (const auto& [name, s] : strata_) {
      const StratumBaseline& b = baselines_.at(name);
      part += (static_cast<double>(s.n) / static_cast<double>(pooled_.n) - b.share) * b.mean;
    }
  return part;
}

// The bound already follows the positions and holds the tolerance, which is taken out again here.
double Detector::within_part() const {
  double part = 0;
  if (pooled_.n > 0)
    for (const auto& [name, s] : strata_) {
      if (s.n == 0) continue;
      const double n = static_cast<double>(s.n);
      part += n / static_cast<double>(pooled_.n) * (s.sum_x / n - (s.sum_b / n + tolerance(baselines_.at(name), wander_sd_)));
    }
  return part;
}

Json Detector::state() const {
  Json strata = Json::object();
  for (const auto& [name, s] : strata_) strata[name] = to_json(s);
  return {{"schema", "specdec.detector/1"}, {"pooled", to_json(pooled_)}, {"strata", strata}};
}

void Detector::restore(const Json& state, const std::string& where) {
  require_schema(state, "detector", 1, where);
  if (!state.contains("pooled") || !state["pooled"].is_object() || !state.contains("strata") || !state["strata"].is_object())
    throw Error(ErrorKind::kData, where + ": pooled and strata: expected objects");
  pooled_ = from_json(state["pooled"], where + ": pooled");
  for (const auto& [name, value] : state["strata"].items())
    if (strata_.count(name)) strata_[name] = from_json(value, where + ": " + name);
}

}  // namespace specdec::monitor
