// Reads and judges the sources once per check, and records the verdict together with the transition that follows from
// it.
#pragma once

#include <filesystem>
#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "monitor/facts/facts.h"
#include "monitor/facts/options.h"
#include "monitor/loop_driver.h"
#include "monitor/observation.h"
#include "monitor/state/state.h"

namespace specdec::monitor {

struct SourcesOutcome {
  Judged judged;
  SourcesReport report;
  std::string alarm_key = {};  // key under which --on-drift runs for this alarm, "" = there is none
  double speedup_now = 0;      // see RedistilRequest
};

// Reads and judges the sources, and sets in `facts` the target that the sources name. Throws what observe() throws.
// Throws Error(kNetwork), which means "try again", during a rolling update of the target, because it is then unknown
// which target's acceptance would be judged.
SourcesOutcome check_sources(const CheckOptions& options, const Clock& clock, Facts& facts, State& state,
                             LoopDriver& driver);

// Returns <state>.report.json, the file that always has the result of the last check.
std::filesystem::path report_file(const std::filesystem::path& state);

}  // namespace specdec::monitor
