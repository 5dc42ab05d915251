// Converts the detector's state to JSON and back.
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/format.h"
#include "monitor/statistics/detector.h"

namespace specdec::monitor {

namespace {

constexpr int64_t kMaxSeen = int64_t{1} << 53;

std::string hex(double value) { return format("%a", value); }

double unhex(const Json& object, const char* key, const std::string& where) {
  const std::string text = json_string(object, key, where, ErrorKind::kData);
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != 0 || !std::isfinite(value))
    throw Error(ErrorKind::kData, where + ": " + key + ": expected a number, found '" + text + "'");
  return value;
}

Json to_json(const Sums& s) {
  return {{"n", s.n}, {"x", hex(s.x)}, {"expected", hex(s.expected)}, {"mean", hex(s.mean)}};
}

const Json& member(const Json& o, const char* key, const std::string& where) {
  if (!o.is_object() || !o.contains(key) || !o[key].is_object())
    throw Error(ErrorKind::kData, where + ": " + key + ": expected an object");
  return o[key];
}

Sums sums_from_json(const Json& parent, const char* key, const std::string& where) {
  const Json& o = member(parent, key, where);
  const std::string at = where + ": " + key;
  return {json_int(o, "n", {0, kMaxSeen}, at, ErrorKind::kData), unhex(o, "x", at), unhex(o, "expected", at),
          unhex(o, "mean", at)};
}

Json to_json(const ShiryaevRoberts& s) {
  Json bets = Json::array();
  for (size_t j = 0; j < s.m.size(); ++j) {
    const ShiryaevRoberts::Start& start = s.starts[j];
    bets.push_back({{"m", hex(s.m[j])},
                    {"log_sum", hex(start.log_sum)},
                    {"lowest", hex(start.lowest)},
                    {"before", to_json(start.before)},
                    {"time", start.time}});
  }
  return {{"bets", bets}, {"total", to_json(s.total)}};
}

ShiryaevRoberts stream_from_json(const Json& o, const std::string& where) {
  ShiryaevRoberts s;
  const Json& bets = json_array(o, "bets", s.m.size(), where, ErrorKind::kData);
  if (bets.size() != s.m.size())
    throw Error(ErrorKind::kData, where + ": bets: expected " + std::to_string(s.m.size()));
  for (size_t j = 0; j < s.m.size(); ++j) {
    s.m[j] = unhex(bets[j], "m", where);
    if (s.m[j] < 0) throw Error(ErrorKind::kData, where + ": m: expected a number >= 0");
    s.starts[j] = {unhex(bets[j], "log_sum", where), unhex(bets[j], "lowest", where),
                   sums_from_json(bets[j], "before", where),
                   json_int(bets[j], "time", {-kMaxSeen, kMaxSeen}, where, ErrorKind::kData)};
  }
  s.total = sums_from_json(o, "total", where);
  return s;
}

Json to_json(const Peak& p) {
  return {{"log_evidence", hex(p.log_evidence)},
          {"requests", p.requests},
          {"time", p.time},
          {"stratum", p.stratum},
          {"since_change", to_json(p.since_change)},
          {"change_time", p.change_time},
          {"change_requests", p.change_requests}};
}

Peak peak_from_json(const Json& o, const std::string& where) {
  Peak p;
  p.log_evidence = unhex(o, "log_evidence", where);
  p.requests = json_int(o, "requests", {0, kMaxSeen}, where, ErrorKind::kData);
  p.time = json_int(o, "time", {-kMaxSeen, kMaxSeen}, where, ErrorKind::kData);
  p.stratum = json_string(o, "stratum", where, ErrorKind::kData);
  p.since_change = sums_from_json(o, "since_change", where);
  p.change_time = json_int(o, "change_time", {-kMaxSeen, kMaxSeen}, where, ErrorKind::kData);
  p.change_requests = json_int(o, "change_requests", {0, kMaxSeen}, where, ErrorKind::kData);
  return p;
}

}  // namespace

Json Detector::state() const {
  Json strata = Json::object();
  for (const auto& [name, s] : strata_) strata[name] = to_json(s);
  return {{"schema", "specdec.detector/2"},
          {"baseline", digest_},
          {"pooled", to_json(pooled_)},
          {"strata", strata},
          {"peak", to_json(peak_)},
          {"peak_evidence", hex(peak_evidence_)},
          {"cusum", hex(amber_.cusum)},
          {"mix",
           {{"newest", mix_.newest}, {"block_before", mix_.block_before}, {"n", mix_.n}, {"n_before", mix_.n_before}}}};
}

bool Detector::restore(const Json& state, const std::string& where) {
  // Version 1 stored, as logarithms, one change point per stream; later versions store one per bet.
  if (state.is_object() && state.value("schema", Json()) == "specdec.detector/1") return false;
  require_schema(state, "detector", 2, where);
  if (json_digest(state, "baseline", false, where, ErrorKind::kData) != digest_) return false;
  const ShiryaevRoberts pooled = stream_from_json(member(state, "pooled", where), where + ": pooled");
  std::map<std::string, ShiryaevRoberts> strata = strata_;
  for (const auto& [name, value] : member(state, "strata", where).items())
    if (strata.count(name)) strata[name] = stream_from_json(value, where + ": " + name);
  const Peak peak = peak_from_json(member(state, "peak", where), where + ": peak");
  const Json& mix = member(state, "mix", where);
  const std::string at = where + ": mix";
  Mix read;
  read.newest = json_counts(mix, "newest", at, ErrorKind::kData);
  read.block_before = json_counts(mix, "block_before", at, ErrorKind::kData);
  read.n = json_int(mix, "n", {0, Mix::kBlock}, at, ErrorKind::kData);
  read.n_before = json_int(mix, "n_before", {0, Mix::kBlock}, at, ErrorKind::kData);
  const double peak_evidence = unhex(state, "peak_evidence", where), cusum = unhex(state, "cusum", where);
  pooled_ = pooled;
  strata_ = std::move(strata);
  peak_ = peak;
  mix_ = std::move(read);
  peak_evidence_ = peak_evidence;
  amber_.cusum = std::max(cusum, 0.0);
  return true;
}

}  // namespace specdec::monitor
