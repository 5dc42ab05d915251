// The loop asks these questions when no action can be done: is there a candidate to be tried, what do the scores of the
// one on trial say, and what is the next step of the state that it is in.
#pragma once

#include <optional>
#include <string>

#include "base/schema/package_manifest.h"
#include "monitor/loop_context.h"
#include "monitor/state.h"

namespace specdec::monitor {

struct Answer {
  std::optional<Occurrence> occurrence = {};  // follows from the answer
  std::string waiting = {};                   // says why nothing follows, "" = there is nothing to say
};

// A package is to be tried that the candidate channel names, if it fits the target as served, passed its gate and was
// never tried.
struct Untried {
  std::optional<ResolvedPackage> package = {};
  std::string waiting = {};  // says why the package that is there is not tried, "" = there is nothing to say
};
// Throws what locate_package throws.
Untried untried_candidate(const LoopContext& context);
// Makes the event of a candidate. Throws Error(kData) for a package whose report cannot be read.
Occurrence candidate_occurrence(const LoopContext& context, const ResolvedPackage& package, Json evidence);

// Asks the candidate channel: another candidate has come, or the one that is tried is withdrawn.
Answer ask_candidate(const LoopContext& context);
// Asks the server how the trial of the candidate goes. A server that does not answer is asked again by the next check.
Answer ask_canary(const LoopContext& context);
// Asks what the present state waits for: a confirmation, the guards of a redistillation, or the package of a Job.
// `speedup_now` is as in RedistilRequest.
Answer ask_next_step(const LoopContext& context, const State& state, double speedup_now);

}  // namespace specdec::monitor
