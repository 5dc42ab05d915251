// Decides whether something stands against a redistillation: cooldown, budget, too little new data, or that it does not
// pay.
#pragma once

#include <string>

#include "monitor/loop_context.h"
#include "monitor/state.h"

namespace specdec::monitor {

struct RedistilRequest {
  std::string target;      // is the fingerprint of the target to redistil for
  bool stale = false;      // the target changed: the requests seen so far say nothing, and the draft is worth nothing
  double speedup_now = 0;  // 0 = it is unknown
};
// Returns "" or the reason, which the user is told. Cooldown and fresh data count from the last redistillation for the
// same target: a new target has none to wait for, and its requests are not counted (only the drafts made for it are
// watched). The budget of 7 days is for all.
std::string refusal(const LoopContext& context, const State& state, const RedistilRequest& request);

}  // namespace specdec::monitor
