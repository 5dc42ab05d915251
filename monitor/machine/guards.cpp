#include "monitor/machine/guards.h"

#include <algorithm>

#include "base/format.h"
#include "monitor/facts/payback.h"
#include "monitor/facts/served_target.h"

namespace specdec::monitor {

namespace {
constexpr int64_t kWeek = 7 * 86400, kSkew = 300;
}

std::string refusal(const LoopContext& context, const State& state, const RedistilRequest& request) {
  const Policy& p = context.options.policy;
  const Memory& memory = context.memory;
  const int64_t now = context.now;
  if (p.loop.empty() && p.redistil.empty() && p.job.empty())
    return "no redistillation is set up (--loop, --redistil or --job)";
  std::vector<ActionEntry> begun = state.actions_of("redistil", 0);
  // Redistillations with a time in the future come from a clock that was wrong. They are ignored; otherwise the
  // cooldown would last until that time.
  std::erase_if(begun, [now](const ActionEntry& a) { return a.created > now + kSkew; });
  const auto in_week =
      std::count_if(begun.begin(), begun.end(), [&](const ActionEntry& a) { return a.created > now - kWeek; });
  if (in_week >= p.budget)
    return "budget: " + std::to_string(in_week) + " redistillations in 7 days, " + std::to_string(p.budget) +
           " allowed";
  const auto last = std::find_if(begun.rbegin(), begun.rend(), [&](const ActionEntry& a) {
    return same_target(a.payload.value("target", ""), request.target);
  });
  if (last != begun.rend()) {
    if (const double hours = static_cast<double>(now - last->created) / 3600; hours < p.cooldown_hours)
      return format("cooldown: the last redistillation began %.1f h ago, %.1f h must pass", hours, p.cooldown_hours);
  }
  const int64_t fresh = memory.records - (last == begun.rend() ? 0 : last->payload.value("records", int64_t{0}));
  if (!request.stale && fresh < p.min_fresh)
    return "too little new data: " + std::to_string(fresh) + " requests since the last redistillation, " +
           std::to_string(p.min_fresh) + " needed";
  const double change =
      memory.regained.empty() ? 0 : std::min(0.0, *std::min_element(memory.regained.begin(), memory.regained.end()));
  const Payback back = payback(p, context.options.requests_per_day, request.stale ? 1 : request.speedup_now,
                               speedup_at(context.facts.report, change));
  return back.pays ? "" : "does not pay: " + back.text;
}

}  // namespace specdec::monitor
