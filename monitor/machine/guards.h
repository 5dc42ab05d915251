// Decides whether a redistillation has to wait because of the cooldown, the budget or too little new data, or because
// it does not pay.
#pragma once

#include <string>

#include "monitor/machine/loop_context.h"
#include "monitor/state/state.h"

namespace specdec::monitor {

struct RedistilRequest {
  std::string target;  // fingerprint of the target to redistil for
  // True if the served target has changed. Then the requests seen so far do not count, and the current draft is
  // useless.
  bool stale = false;
  double speedup_now = 0;  // 0 = unknown
};
// Returns "" if the redistillation may begin, else the reason, as shown to the user. The cooldown and the number of
// fresh requests count from the last redistillation for the same target. With `stale` no fresh requests are needed:
// requests are judged only while the draft fits the target that serves them, so requests to a new target would never be
// counted. The budget of redistillations in 7 days covers all targets.
std::string refusal(const LoopContext& context, const State& state, const RedistilRequest& request);

}  // namespace specdec::monitor
