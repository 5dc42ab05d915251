// Reads every source once and judges from their data whether acceptance has dropped. The state machine later decides
// what follows from the verdict.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/package_manifest.h"
#include "base/schema/validation_report.h"
#include "base/verdict.h"
#include "monitor/facts/options.h"
#include "monitor/facts/served_target.h"
#include "monitor/read/source.h"
#include "monitor/state/state.h"
#include "monitor/statistics/counter_chart.h"
#include "monitor/statistics/detector.h"
#include "monitor/statistics/evidence_age.h"

namespace specdec::monitor {

// Numbers of new requests: those that were judged, and the others by the reason why they were not judged.
struct RequestFigures {
  int64_t watched = 0, too_short = 0, not_drafted = 0, no_baseline = 0, other_draft = 0, other_target = 0;
  // Requests that name no target while a target other than the bound one is known to be served.
  int64_t no_target = 0;
  std::string first_without_baseline;
};

struct Observation {
  int64_t records_sources = 0, pages = 0;  // numbers of sources that were read
  Few set_aside;                           // sources and replicas that could not be used, each with the reason
  ReadFigures read;
  RequestFigures requests;
  std::vector<std::string> notes;                      // shown to the user; they do not cause a warning
  std::vector<std::string> chart_alarms, chart_notes;  // from counters; a note causes a warning
  std::vector<std::string> silent_pages;               // notes on pages that never had a series with this package
  std::vector<ChartView> charts;
  std::optional<EvidenceAge> age;  // nothing if the sources were not read
  Claims claims;
  int64_t recalled_buckets = 0;  // most scrapes judged for an engine that no page shows this time
  int64_t chart_buckets() const;
  // keep() stores `age` and the fields below. The first check that learns of another target leaves all of them empty
  // except `without_others`, so that the next check reads the same data again.
  std::map<std::string, FilePosition> positions;  // of files in which new lines were read
  std::map<std::string, Counters> counters;
  // Earlier scrapes without the replicas that now serve another pair.
  std::map<std::string, Counters> without_others;
  std::map<std::string, std::string> chart_states;
};

// Makes a detector from the baseline file that the options name, else from the report's roll-outs. Throws Error(kData)
// if the file is not a baseline or was measured with another pair.
Detector make_detector(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report);

// Measures a baseline from the records of this package's pair in `sources` (files and directories, read from their
// beginning). Throws what read_records throws, and Error(kUsage) for a URL, because counters are not requests.
EstimatedBaseline measure_baseline(const std::vector<SecretUrl>& sources, const ResolvedPackage& package, int64_t now);

struct ObservationContext {
  const CheckOptions& options;
  const ResolvedPackage& package;
  const ValidationReport& report;
  const State& state;
  std::vector<NamedRecord> newest = {};  // the newest records of earlier checks
  int64_t now = 0;
  // While another target is known to be served, traffic that does not name its target is read but not judged.
  bool another_is_served = false;
};
// Reads on from the positions in the state, and feeds the detector; the state does not change before keep(). A source
// that cannot be read is set aside and named. If no source can be read, throws the first source's error: Error(kData |
// kNetwork | kIo). Throws Error(kUsage) for an argument that is not a source.
Observation observe(const ObservationContext& context, Detector& detector);
void keep(const Observation& observation, State& state);

struct Judged {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;     // one line
  Json figure;            // the figure that the verdict was judged by: {name, value, limit, …}
  std::string next = {};  // the command to run next
};
Judged judge(const CheckOptions& options, const Detector& detector, const ValidationReport& report,
             const Observation& observation);

// Returns the result's "evidence".
Json evidence_json(const CheckOptions& options, const Detector& detector, const Observation& observation);

// Predicts the speed-up of the best K at today's acceptance (speedup_at of payback.h). Returns 0 if it is unknown or
// there were too few requests.
double speedup_now(const ValidationReport& report, const Detector& detector);

// Returns the logarithm of the alarm level. The level is requests per day × days between false alarms, at least 100; it
// is 1e6 if the number of requests is unknown (0).
double alarm_level(double requests_per_day, double false_alarm_every_days);

}  // namespace specdec::monitor
