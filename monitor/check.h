// `monitor check` compares the target's fingerprint, judges acceptance, and runs the actions that follow from the
// verdict. check() makes one check; `monitor watch` repeats it.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "base/verdict.h"
#include "monitor/facts/options.h"

namespace specdec::monitor {

struct CheckResult {
  Json json;  // schema "specdec.monitor/1"
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;
  int exit_code = 0;
};

// Makes one check: finishes the actions that an earlier check began, reads the sources, commits the verdict and its
// transition, and runs the new actions. Also writes the result to <state>.report.json. An alarm persists until the
// detectors are restarted: by another package, by `acknowledge`, or by a probe.
// Throws Error(kUsage) for bad options, Error(kData | kModel) for a bad package, records or metrics page, and
// Error(kIo) for the state file. Throws Error(kNetwork), which means "try again", if a URL does not answer, or while
// another check or one of its children holds <state>.lock.
CheckResult check(const CheckOptions& options, const Clock& clock);

// Returns 0 for healthy and warn, 3 for drift, 4 for inconclusive, 5 for stale_target and 6 for not_worth_it, unless
// `fail_on` (--fail-on) changes them.
int monitor_exit_code(Verdict verdict, const std::string& fail_on);

}  // namespace specdec::monitor
