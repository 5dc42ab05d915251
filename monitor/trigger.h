// --on-drift: the user's command, once an alarm, remembered across restarts.
#pragma once

#include "monitor/check.h"

namespace specdec::monitor {

// Runs options.on_drift through /bin/sh -c with SPECDEC_VERDICT, SPECDEC_PACKAGE, SPECDEC_TARGET and SPECDEC_REASON, its stdout on our
// stderr, unless `alarm_key` has run before with exit code 0. An attempt is recorded before it starts and its exit code after, so
// that a killed monitor tries again and a successful command never runs twice. Returns {"ran", "exit_code" | "before"}.
Json run_trigger(State& state, const CheckOptions& options, const std::string& alarm_key, const CheckResult& result, const Clock& clock);

}  // namespace specdec::monitor
