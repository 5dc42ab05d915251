// Decides whether a redistillation has to wait: because of the cooldown, the budget, too little new data, or because it
// does not pay.
#pragma once

#include <string>

#include "monitor/loop_context.h"
#include "monitor/state.h"

namespace specdec::monitor {

struct RedistilRequest {
  std::string target;  // fingerprint of the target to redistil for
  // The target has changed: the requests seen so far do not count, and the draft is worth nothing.
  bool stale = false;
  double speedup_now = 0;  // 0 = unknown
};
// Returns "", or the reason as it is shown to the user. Cooldown and fresh data count from the last redistillation for
// the same target. A new target has had none, and its requests are not counted, because only requests with drafts made
// for it are watched. The budget of 7 days covers all targets.
std::string refusal(const LoopContext& context, const State& state, const RedistilRequest& request);

}  // namespace specdec::monitor
