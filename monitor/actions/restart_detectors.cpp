#include "monitor/actions/actions.h"

namespace specdec::monitor {

void restart_detectors(State& state, const std::string& package, const std::string& why, int64_t now) {
  const std::string before = state.value("package");
  const std::string reason = before.empty() ? "first check" : "after " + state.value("verdict");
  state.append(HistoryEntry{0, now, why, package, {{"reason", reason}, {"before", before}}});
  state.set_value("package", package);
  state.set_value("detector", "");
  state.set_value("verdict", "");
  state.set_value("epoch", std::to_string(state.epoch() + 1));
}

void write_down(const RestartDetectors& restart, ActionWriter& writer) {
  const LoopContext& context = writer.context();
  restart_detectors(writer.transaction().state(), context.facts.package.digest, name(restart.why), context.now);
}

}  // namespace specdec::monitor
