// Reads every source once and says what the sources tell about acceptance. The state machine decides later what follows
// from it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/package_manifest.h"
#include "base/schema/validation_report.h"
#include "base/verdict.h"
#include "monitor/counter_chart.h"
#include "monitor/detector.h"
#include "monitor/options.h"
#include "monitor/served_target.h"
#include "monitor/source.h"
#include "monitor/state.h"

namespace specdec::monitor {

// Counts the new requests: those that were judged, and the others by the reason why they were not.
struct RequestFigures {
  int64_t watched = 0, too_short = 0, not_drafted = 0, no_baseline = 0, other_draft = 0, other_target = 0;
  int64_t no_target = 0;  // counts those that name no target while another one than the bound is known to be served
  std::string first_without_baseline;
};

struct Observation {
  int64_t records_sources = 0, pages = 0;  // count the sources that were read
  std::vector<std::string> set_aside;      // names the other sources, and replicas, each with its reason
  ReadFigures read;
  RequestFigures requests;
  std::vector<std::string> notes;                      // are told, but they are no reason for a warning
  std::vector<std::string> chart_alarms, chart_notes;  // come from counters; a note is worth a warning
  std::vector<ChartView> charts;
  Claims claims;
  int64_t chart_buckets() const;
  // keep() writes these down once it is known that it was the bound target's traffic.
  std::map<std::string, FilePosition> positions;  // are those that have moved
  std::map<std::string, Counters> counters;
  // Holds the bases without the replicas that now serve another pair. They are kept whatever the verdict is.
  std::map<std::string, Counters> without_others;
  std::map<std::string, std::string> chart_states;
};

// Makes a detector with the baseline that the options name, or else the report's. Throws Error(kData) for a file that
// is no baseline, or that was measured with another pair.
Detector make_detector(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report);

// Measures a baseline from the records of this package's pair in `sources` (files and directories, read from their
// beginnings). Throws what read_records throws, and Error(kUsage) for a URL, because counters are no requests.
EstimatedBaseline measure_baseline(const std::vector<SecretUrl>& sources, const ResolvedPackage& package, int64_t now);

struct ObservationContext {
  const CheckOptions& options;
  const ResolvedPackage& package;
  const ValidationReport& report;
  const State& state;
  std::vector<NamedRecord> newest = {};  // are the newest of the records that were read before
  int64_t now = 0;
  // While another target is known to be served, what does not name its target is read and judged by nobody.
  bool another_is_served = false;
};
// Reads on from where the state stands and feeds the detector; the state stays as it is until keep(). A source that
// cannot be read is set aside and named. Where no source can be read, the function throws what the first one threw:
// Error(kData | kNetwork | kIo). It throws Error(kUsage) for an argument that is no source.
Observation observe(const ObservationContext& context, Detector& detector);
void keep(const Observation& observation, State& state);

struct Judged {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;     // is one line
  Json figure;            // is what the verdict was judged by: {name, value, limit, …}
  std::string next = {};  // is the command to run next
};
Judged judge(const CheckOptions& options, const Detector& detector, const ValidationReport& report,
             const Observation& observation);

// Returns "evidence" of the result.
Json evidence_json(const CheckOptions& options, const Detector& detector, const Observation& observation);

// Predicts the speed-up of the best K at today's acceptance (speedup_at of payback.h). Returns 0 if it is not known or
// too little was seen.
double speedup_now(const ValidationReport& report, const Detector& detector);

// Returns the logarithm of the alarm level, which is requests a day × days between false alarms.
double alarm_level(double requests_per_day, double false_alarm_every_days);

}  // namespace specdec::monitor
