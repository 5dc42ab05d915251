#include "monitor/actions/actions.h"

namespace specdec::monitor {

namespace {

std::string trigger_key(const std::string& alarm_key) { return alarm_key.empty() ? "" : "trigger " + alarm_key; }

int run_command(const ActionEntry& action, const ActionContext& context) {
  if (!action.payload.contains("environment"))
    return run_for(action, context, shell(context.loop.options.on_drift)).code;
  ChildOrder order{.argv = shell(context.loop.options.on_drift)};
  for (const auto& [key, value] : action.payload["environment"].items())
    order.environment.emplace_back(key, value.get<std::string>());
  return context.children.run(action, order).code;
}

}  // namespace

void write_down_on_drift(Transaction& transaction, const std::string& alarm_key, const Json& environment, int64_t now) {
  ActionEntry entry;
  entry.key = trigger_key(alarm_key);
  entry.kind = kOnDrift;
  entry.payload = {{"environment", environment}};
  entry.created = now;
  transaction.state().add_action(entry);
}

Json run_on_drift(State& state, const std::string& alarm_key, const ActionContext& context, const Clock& clock) {
  const std::string current = trigger_key(alarm_key);
  Json trigger;
  if (const auto known = state.action(current); known && known->ended) trigger = {{"ran", false}, {"before", true}};
  for (ActionEntry& action : state.pending_actions()) {
    if (action.kind != kOnDrift) continue;
    // Ends the action if its command has run and its alarm is over, or if --on-drift is no longer given.
    if ((action.key != current && action.code) || context.loop.options.on_drift.empty()) {
      state.end_action(action.id, clock.unix_seconds());
      continue;
    }
    if (!action.started) {
      state.start_action(action.id, clock.unix_seconds());
      ++action.attempts;
    }
    const int code = run_command(action, context);
    const std::string text = "--on-drift: exit " + std::to_string(code);
    Transaction transaction(state);
    state.record_attempt(action.id, code, text);
    if (code == 0) state.end_action(action.id, clock.unix_seconds());
    state.append(HistoryEntry{0,
                              clock.unix_seconds(),
                              "trigger",
                              context.loop.facts.package.digest,
                              {{"exit_code", code}, {"verdict", state.value("verdict")}, {"reason", text}}});
    transaction.commit();
    context.children.forget(action);
    if (action.key == current) trigger = {{"ran", true}, {"exit_code", code}};
  }
  return trigger;
}

}  // namespace specdec::monitor
