// A measurement records acceptance at one check: sums over all requests since the detectors were last restarted, and
// the e-value. The state keeps one measurement for every ten minutes, so that a report can show acceptance over time.
// Sums are stored instead of means, because the difference of two sums gives the requests between two measurements.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "monitor/statistics/counter_chart.h"
#include "monitor/statistics/detector.h"

namespace specdec::monitor {

// The verdict is inconclusive if fewer than this many requests were judged and the counters had too few scrapes, unless
// there is already an alarm or a warning.
inline constexpr int64_t kEnoughRequests = 50;

// Sums over `n` requests or, if only counters are known, over `n` drafted tokens that the target tested.
struct MeasuredSums {
  int64_t n = 0;
  double acceptance = 0;  // sum of the acceptances
  double expected = 0;    // sum of the expected acceptances; 0 if counters are compared with their own first scrapes
  double tolerance = 0;   // sum over requests of the drop of acceptance that does not count as drift; 0 for counters
};
struct MeasuredDomain {
  MeasuredSums sums;
  double log10_e = 0;
};
struct Measurement {
  static constexpr int64_t kEvery = 600;  // seconds; of the checks within this time, the last one's measurement is kept
  static constexpr size_t kMostDomains = 64;

  int64_t epoch = 0, time = 0;  // `epoch` counts the restarts of the detectors; `time` is in unix seconds
  double log10_e = 0, log10_alarm = 0;
  MeasuredSums requests;
  std::map<std::string, MeasuredDomain> domains;  // key: name of the stratum (kind of request) as used in reports
  std::map<std::string, MeasuredSums> counters;   // key: name of the source
};

// `level` is the logarithm of the e-value at which an alarm is raised. If there are more than kMostDomains domains,
// those with the fewest requests are left out.
Measurement measure(const Detector& detector, const std::vector<ChartView>& charts, double level);
// Returns the measurement that a check's result in the history implies. States of earlier versions stored no
// measurements. Figures that the result does not have are 0.
Measurement measurement_in(const Json& result);

// Convert the figures (all fields except epoch and time) to text for the state, and back. measurement_from_text()
// throws Error(kData) naming `where` if the text is malformed.
std::string figures_text(const Measurement& measurement);
Measurement measurement_from_text(const std::string& text, const std::string& where);

// The figures of the requests between two measurements, or the sums over several consecutive pairs of measurements.
struct Period {
  int64_t from = 0, to = 0;  // unix seconds; `to` is the time of the last measurement
  int64_t epoch = 0;
  double log10_e = 0, log10_alarm = 0;  // log10 of the largest e-value in the period, and of the alarm level at its end
  MeasuredSums requests = {};
  std::map<std::string, MeasuredDomain> domains = {};
  std::map<std::string, MeasuredSums> counters = {};
};
// Divides the measurements (oldest first) into about `most` periods of equal length, in ascending time order. A period
// ends where the detectors were restarted (a new epoch). A period has at least kEnoughRequests requests, if there are
// as many between the two restarts around it. If many restarts lead to more periods, returns only the newest 2 · most.
std::vector<Period> periods_of(const std::vector<Measurement>& measurements, size_t most);

}  // namespace specdec::monitor
