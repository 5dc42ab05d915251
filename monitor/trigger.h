// --on-drift: the user's command, once an alarm, remembered across restarts.
#pragma once

#include "monitor/check.h"

namespace specdec::monitor {

struct Alarm {
  std::string key;                     // what makes it this alarm and no other
  std::string segment;                 // guilty stratum, "" = all
  std::filesystem::path report;        // the result as JSON
};

// Runs options.on_drift through /bin/sh -c with SPECDEC_ALARM_VERDICT, _REASON, _PACKAGE, _TARGET, _SEGMENT and _REPORT
// (no names that are also settings of a command it may start), its stdout on our stderr, unless this alarm's run has ended with exit code 0 before. An attempt is recorded before it
// starts and its exit code after, so that a killed monitor tries again and a successful command never runs twice. Returns
// {"ran", "exit_code" | "before"}.
Json run_trigger(State& state, const CheckOptions& options, const Alarm& alarm, const CheckResult& result, const Clock& clock);

}  // namespace specdec::monitor
