// `monitor check` compares the target's fingerprint, judges acceptance, and does what follows from the verdict. One
// call looks once; `watch` repeats it.
#pragma once

#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "base/verdict.h"
#include "monitor/options.h"

namespace specdec::monitor {

struct CheckResult {
  Json json;  // has the schema "specdec.monitor/1"
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;
  int exit_code = 0;
};

// Ends first what an earlier check had begun, looks, and commits what follows before doing it. The result is also
// written beside the state, as <state>.report.json. An alarm stays until another package or `acknowledge` ends it.
// Throws Error(kUsage) for bad options, Error(kData | kModel) for a bad package, records or metrics page,
// Error(kNetwork) where a URL does not answer or another check or one of its children is still at work (<state>.lock),
// and Error(kIo) for the state's file.
CheckResult check(const CheckOptions& options, const Clock& clock);

// Returns 0 for healthy and warn, 3 for drift, 4 for inconclusive, 5 for stale_target and 6 for not_worth_it, changed
// as --fail-on says.
int monitor_exit_code(Verdict verdict, const std::string& fail_on);

}  // namespace specdec::monitor
