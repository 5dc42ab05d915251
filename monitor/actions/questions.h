// Questions that the loop asks when no action is pending: Is there a candidate to try? How does the candidate on trial
// score? Has the event happened that the current state waits for?
#pragma once

#include <optional>
#include <string>

#include "base/schema/package_manifest.h"
#include "monitor/machine/loop_context.h"
#include "monitor/state/state.h"

namespace specdec::monitor {

struct Answer {
  std::optional<Occurrence> occurrence = {};  // the event for the state machine, if any
  std::string waiting = {};                   // why there is no event, "" = nothing to report
};

// The result of looking for a package to try. `package` is set if the package in the candidate channel may be tried: it
// fits the served target, passed its gate (or --allow-failed is given) and was never tried. Otherwise `waiting` has the
// reason.
struct Untried {
  std::optional<ResolvedPackage> package = {};
  std::string waiting = {};  // why the package in the channel is not tried, "" = nothing to report
};
// Looks for a package to try. Throws what locate_package throws.
Untried untried_candidate(const LoopContext& context);
// Makes the event for a candidate. Throws Error(kData) for a package whose report cannot be read.
Occurrence candidate_occurrence(const LoopContext& context, const ResolvedPackage& package, Json evidence);

// Looks whether the candidate channel names another candidate, or no longer names the current one (it was withdrawn).
Answer ask_candidate(const LoopContext& context);
// Asks the server for the scores of the candidate's trial. If the server does not answer, the next check asks again.
Answer ask_canary(const LoopContext& context);
// Looks for the event that the current state waits for: a confirmation of the alarm, the permission to redistil
// (guards.h), or the package of a Kubernetes Job. For `speedup_now` see RedistilRequest.
Answer ask_next_step(const LoopContext& context, const State& state, double speedup_now);

}  // namespace specdec::monitor
