// One look at every source, and what it says of acceptance: the evidence before the state machine decides what follows
// from it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/package_manifest.h"
#include "base/schema/validation_report.h"
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
  int64_t no_target = 0;  // name no target, while another one than the bound is known to be served
  std::string first_without_baseline;
};

struct Look {
  int64_t records_sources = 0, pages = 0;  // that were read
  std::vector<std::string> set_aside;      // the others, and replicas, each with its reason
  ReadFigures read;
  RequestFigures requests;
  std::vector<std::string> notes;                      // told, but no reason for a warning
  std::vector<std::string> chart_alarms, chart_notes;  // of counters; what is worth a warning
  std::vector<ChartView> charts;
  Claims claims;
  int64_t chart_buckets() const;
  // To be kept by keep() once it is known that it was the bound target's traffic.
  std::map<std::string, FilePosition> positions;  // those that moved
  std::map<std::string, Counters> counters;
  // bases less the replicas that now serve another pair: kept whatever the verdict
  std::map<std::string, Counters> without_others;
  std::map<std::string, std::string> chart_states;
};

// With the baseline that the options name, or the report's. Throws Error(kData): a file that is no baseline, or of
// another pair.
Detector make_detector(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report);

// A baseline of the records in `sources` (files and directories, read from their beginnings) of this package's pair.
// Throws what read_records throws, and Error(kUsage) for a URL: counters are no requests.
EstimatedBaseline measure_baseline(const std::vector<SecretUrl>& sources, const ResolvedPackage& package, int64_t now);

// Reads on from where the state stands and feeds the detector; the state is as it was until keep(). `newest`: of the
// records before. While another target is known to be served, what does not name its target is read and judged by
// nobody. A source that cannot be read is set aside and named; where that is all of them, what the first one threw is
// thrown: Error(kData | kNetwork | kIo). Throws Error(kUsage) for a source that is none.
Look take_look(const CheckOptions& options, const ResolvedPackage& package, const ValidationReport& report,
               const State& state, Detector& detector, const std::vector<NamedRecord>& newest, int64_t now,
               bool another_is_served = false);
void keep(const Look& look, State& state);

struct Judged {
  std::string verdict, reason;  // of monitor_exit_code(); one line
  Json figure;                  // what it was judged by: {name, value, limit, …}
  std::string next = {};        // the command to run next
};
Judged judge(const CheckOptions& options, const Detector& detector, const ValidationReport& report, const Look& look);

// "evidence" of the result.
Json evidence_json(const CheckOptions& options, const Detector& detector, const Look& look);

// What the best K is predicted to gain at today's acceptance (speedup_at of payback.h); 0 if that is not known or too
// little was seen.
double speedup_now(const ValidationReport& report, const Detector& detector);

// log of the alarm level: requests a day × days between false alarms.
double alarm_level(double requests_per_day, double false_alarm_every_days);

}  // namespace specdec::monitor
