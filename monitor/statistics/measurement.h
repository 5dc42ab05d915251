// A measurement holds what one check knows about acceptance: sums over all requests since the detectors were last
// restarted, with the evidence. The state keeps one for every ten minutes, so that a report can show how acceptance
// went. Sums are kept instead of means, because the difference of two sums describes the requests between two
// measurements.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "monitor/statistics/counter_chart.h"
#include "monitor/statistics/detector.h"

namespace specdec::monitor {

// Fewer requests make a mean that says little: with them (and with too few scrapes) the verdict is inconclusive, unless
// there is already an alarm or a warning.
inline constexpr int64_t kEnoughRequests = 50;

// Sums over requests, or over tested tokens where only counters are known.
struct MeasuredSums {
  int64_t n = 0;
  double acceptance = 0;  // Σ acceptance
  double expected = 0;    // Σ expected acceptance; 0 for counters that are compared with themselves
  double tolerance = 0;   // Σ of how far each may fall without counting as drift
};
struct MeasuredDomain {
  MeasuredSums sums;
  double log10_e = 0;
};
struct Measurement {
  static constexpr int64_t kEvery = 600;  // seconds; the last check in such a stretch of time counts
  static constexpr size_t kMostDomains = 64;

  int64_t epoch = 0, time = 0;  // unix seconds; the epoch counts the restarts of the detectors
  double log10_e = 0, log10_alarm = 0;
  MeasuredSums requests;
  std::map<std::string, MeasuredDomain> domains;  // by the names of the report's strata
  std::map<std::string, MeasuredSums> counters;   // by the sources
};

// `level` is the logarithm of the alarm level. Domains beyond kMostDomains are left out, those with the fewest requests
// first.
Measurement measure(const Detector& detector, const std::vector<ChartView>& charts, double level);
// Returns the measurement in the result of an earlier check, as the history keeps it; what is missing is 0. States of
// earlier versions have no other figures of their past.
Measurement measurement_in(const Json& result);

// The figures besides epoch and time, as text for the state. The second throws Error(kData) naming `where` for anything
// else.
std::string figures_text(const Measurement& measurement);
Measurement measurement_from_text(const std::string& text, const std::string& where);

// The figures of the requests between two measurements, or of several such stretches.
struct Period {
  int64_t from = 0, to = 0;  // unix seconds; `to` is the time of the last measurement
  int64_t epoch = 0;
  double log10_e = 0, log10_alarm = 0;  // the largest evidence, and the level at the end
  MeasuredSums requests = {};
  std::map<std::string, MeasuredDomain> domains = {};
  std::map<std::string, MeasuredSums> counters = {};
};
// Divides the measurements (oldest first) into about `most` periods of equal length. A period ends with its epoch, and
// has at least 50 requests if there are as many. Returns the newest 2·most if there are more because of many epochs.
// The times of the periods ascend.
std::vector<Period> periods_of(const std::vector<Measurement>& measurements, size_t most);

}  // namespace specdec::monitor
