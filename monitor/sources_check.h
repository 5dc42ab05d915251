// The sources are read and judged once a check, and the verdict is recorded together with the transition that it leads
// to.
#pragma once

#include <filesystem>
#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "monitor/facts.h"
#include "monitor/loop_driver.h"
#include "monitor/observation.h"
#include "monitor/options.h"
#include "monitor/state.h"

namespace specdec::monitor {

struct SourcesOutcome {
  Judged judged;
  Json result;                 // has the schema "specdec.monitor/1"
  std::string alarm_key = {};  // names the alarm, "" = there is none
  double speedup_now = 0;      // is as in RedistilRequest
};

// Enters into `facts` which target the sources name. Throws what observe() throws, and Error(kNetwork) while an update
// of the target is under way, because nobody knows whose acceptance would be judged.
SourcesOutcome check_sources(const CheckOptions& options, const Clock& clock, Facts& facts, State& state,
                             LoopDriver& driver);

// Returns where the result is written, too.
std::filesystem::path report_file(const CheckOptions& options);

}  // namespace specdec::monitor
