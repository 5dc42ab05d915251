// The questions that the loop asks when no action can be done. Is there a candidate to try? What do the canary's scores
// say? What is the next step of the current state?
#pragma once

#include <optional>
#include <string>

#include "base/schema/package_manifest.h"
#include "monitor/machine/loop_context.h"
#include "monitor/state/state.h"

namespace specdec::monitor {

struct Answer {
  std::optional<Occurrence> occurrence = {};  // the event that follows from the answer
  std::string waiting = {};                   // why nothing follows, "" = nothing to report
};

// The package to try: the package in the candidate channel, if it fits the served target, passed its gate (or
// --allow-failed is given) and was never tried.
struct Untried {
  std::optional<ResolvedPackage> package = {};
  std::string waiting = {};  // why the package in the channel is not tried, "" = nothing to report
};
// Looks for a package to try. Throws what locate_package throws.
Untried untried_candidate(const LoopContext& context);
// Makes the event for a candidate. Throws Error(kData) for a package whose report cannot be read.
Occurrence candidate_occurrence(const LoopContext& context, const ResolvedPackage& package, Json evidence);

// Asks the candidate channel whether another candidate has come or the current one was withdrawn.
Answer ask_candidate(const LoopContext& context);
// Asks the server how the candidate's trial is going. If the server does not answer, the next check asks again.
Answer ask_canary(const LoopContext& context);
// Asks for what the current state waits for: a confirmation, the consent of the guards to a redistillation, or the
// package of a Job. `speedup_now` is as in RedistilRequest.
Answer ask_next_step(const LoopContext& context, const State& state, double speedup_now);

}  // namespace specdec::monitor
