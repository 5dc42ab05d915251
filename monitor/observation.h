// Reads every source once and judges whether acceptance has dropped. The state machine then decides what to do about
// the verdict.
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
#include "monitor/check_report.h"
#include "monitor/facts/options.h"
#include "monitor/facts/served_target.h"
#include "monitor/read/source.h"
#include "monitor/state/state.h"
#include "monitor/statistics/counter_chart.h"
#include "monitor/statistics/detector.h"
#include "monitor/statistics/evidence_age.h"

namespace specdec::monitor {

// Numbers of new requests. `watched` requests were judged; each other field counts requests that were not judged for
// one reason.
struct RequestFigures {
  int64_t watched = 0, too_short = 0, not_drafted = 0, no_baseline = 0, other_draft = 0, other_target = 0;
  // Requests that name no target, read while another target than the package's is known to be served.
  int64_t no_target = 0;
  std::string first_without_baseline;
};

struct Observation {
  int64_t records_sources = 0, pages = 0;  // numbers of record sources and of pages that were read
  Few set_aside;                           // sources and replicas that could not be used, each with the reason
  ReadFigures read;
  RequestFigures requests;
  std::vector<std::string> notes;  // shown to the user; they do not cause a warning
  // Alarms and notes of the counter charts; a note causes a warning.
  std::vector<std::string> chart_alarms, chart_notes;
  // One note for each page without series of speculative decoding, in this check and in all earlier ones of this
  // package.
  std::vector<std::string> silent_pages;
  std::vector<ChartView> charts;
  std::optional<EvidenceAge> age;  // empty if the sources were not read
  Claims claims;
  // Number of scrapes that earlier checks judged; the largest of the engines without counters in this check.
  int64_t recalled_buckets = 0;
  int64_t chart_buckets() const;
  // keep() stores `age` and the fields below. If a check is the first to find another target served, all of them but
  // `without_others` are empty, so that the next check reads the same data again.
  std::map<std::string, FilePosition> positions;  // positions in files with new lines
  std::map<std::string, Counters> counters;
  // Earlier scrapes, without the replicas that now serve another pair of models.
  std::map<std::string, Counters> without_others;
  std::map<std::string, std::string> chart_states;
};

// Makes a detector from the baseline file options.baseline or, if that is "", from the roll-outs in the validation
// report. Throws Error(kData) if the file is not a baseline or was measured with another pair of models.
Detector make_detector(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report);

// Measures a baseline from the records of this package's pair of models in `sources` (files and directories, read from
// the start). Throws what read_records throws, and Error(kUsage) for a URL, because counters do not tell requests
// apart.
EstimatedBaseline measure_baseline(const std::vector<SecretUrl>& sources, const ResolvedPackage& package, int64_t now);

struct ObservationContext {
  const CheckOptions& options;
  const ResolvedPackage& package;
  const ValidationReport& report;
  const State& state;
  std::vector<NamedRecord> newest = {};  // the newest records of earlier checks
  int64_t now = 0;
  // True while another target is known to be served. Then traffic that does not name its target is read but not judged.
  bool another_is_served = false;
};
// Reads the sources, from the positions that the state holds, and passes what it reads to the detector. Only keep()
// changes the state. A source that cannot be read is listed in set_aside. If no source can be read, throws the error of
// the first one: Error(kData | kNetwork | kIo). Throws Error(kUsage) for an argument that is not a source.
Observation observe(const ObservationContext& context, Detector& detector);
void keep(const Observation& observation, State& state);

struct Judged {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;                   // one line
  std::optional<MonitorFigure> figure;  // the figure that the verdict was judged by
  std::string next = {};                // the command to run next
};
Judged judge(const CheckOptions& options, const Detector& detector, const ValidationReport& report,
             const Observation& observation);

// Returns the check result's field "evidence".
Json evidence_json(const CheckOptions& options, const Detector& detector, const Observation& observation);

// Predicts the speed-up of the best K at the current acceptance (speedup_at() of payback.h). Returns 0 if the speed-up
// is unknown or there were too few requests.
double speedup_now(const ValidationReport& report, const Detector& detector);

// Returns the logarithm of the alarm level, the e-value at which an alarm is raised. The level is requests per day ×
// days between false alarms, at least 100, or 1e6 if requests_per_day is 0 (unknown).
double alarm_level(double requests_per_day, double false_alarm_every_days);

}  // namespace specdec::monitor
