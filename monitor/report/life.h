// The life of a draft as the monitor's state shows it: acceptance over time, and events. The size is bounded for any
// age of the state: only the newest and the most serious events are kept, and measurements are summed into periods.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "monitor/machine/machine.h"
#include "monitor/state/state.h"
#include "monitor/statistics/measurement.h"

namespace specdec::monitor {

enum class EventKind { kVerdict, kState, kPackage, kDetectors, kTraining, kCanary, kPromotion, kRollback, kAction };
const char* name(EventKind kind);  // returns "verdict", "training", …

enum class Tone { kPlain, kGood, kOpen, kBad };

struct LifeEvent {
  int64_t time = 0;  // unix seconds
  EventKind kind = EventKind::kAction;
  std::string what, reason;  // `what` names the event, such as "drift"; `reason` is its cause; one line each
  Tone tone = Tone::kPlain;
  int64_t began = 0;  // for a training, the time when it was requested
};
// A span of time in which something stayed the same, such as the verdict.
struct LifeSpan {
  int64_t from = 0, to = 0;
  std::string what;
  Tone tone = Tone::kPlain;
};

struct LifeCounts {
  int64_t alarms = 0;  // number of changes of the verdict to drift, stale_target or not_worth_it
  int64_t false_alarms = 0, target_changes = 0;
  int64_t trainings = 0, failed_trainings = 0;
  int64_t canaries = 0, promotions = 0, lost_canaries = 0, rollbacks = 0;
};

struct Life {
  static constexpr size_t kMostEvents = 400, kMostPeriods = 300;

  // Unix seconds of the first and the newest record, 0 = no check was recorded.
  int64_t begin = 0, end = 0;
  std::string verdict, package;             // of the last check; "" = no check since the detectors were restarted
  std::string reason, next, checked;        // from the last check's result, "" if unknown; `checked` is its time
  std::vector<std::string> waiting, to_do;  // why the loop waits, and the actions that have not ended
  Memory memory;                            // memory of the state machine
  LifeCounts counts;
  std::vector<Measurement> last;  // the newest measurement; empty if there is none
  std::vector<Period> periods;    // oldest first
  std::vector<LifeEvent> events;  // oldest first
  int64_t left_out = 0;           // number of events that were left out of `events`
  std::vector<LifeSpan> verdicts, states, trainings, canaries, packages, targets;  // oldest first

  bool is_empty() const { return begin == 0; }
};

// `result` is the file with the last result (report_file()), which may be missing. Throws what State throws.
Life read_life(const State& state, const std::filesystem::path& result);

// Converts the history to JSON for embedding in reports, without the domains of the periods.
Json to_json(const Life& life);

}  // namespace specdec::monitor
