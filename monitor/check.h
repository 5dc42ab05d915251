// `monitor check` compares the target's fingerprint, judges acceptance, and does what follows from the verdict. check()
// does this once; `watch` repeats it.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "base/verdict.h"
#include "monitor/options.h"

namespace specdec::monitor {

struct CheckResult {
  Json json;  // schema "specdec.monitor/1"
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;
  int exit_code = 0;
};

// First finishes what an earlier check began. Then reads the sources, commits what follows, and does it. Also writes
// the result to <state>.report.json. An alarm stays until another package or `acknowledge` ends it. Throws
// Error(kUsage) for bad options, Error(kData | kModel) for a bad package, records or metrics page, Error(kNetwork) if a
// URL does not answer or another check or one of its children is still running (<state>.lock), and Error(kIo) for the
// state file.
CheckResult check(const CheckOptions& options, const Clock& clock);

// Returns 0 for healthy and warn, 3 for drift, 4 for inconclusive, 5 for stale_target and 6 for not_worth_it, changed
// as --fail-on says.
int monitor_exit_code(Verdict verdict, const std::string& fail_on);

}  // namespace specdec::monitor
