#include "monitor/actions/actions.h"

#include <map>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"

namespace specdec::monitor {

ActionWriter::ActionWriter(Transaction& transaction, const LoopContext& context, int64_t transition)
    : transaction_(transaction), context_(context), transition_(transition) {}

void ActionWriter::add(const std::string& kind, const std::string& key, Json payload) {
  ActionEntry entry;
  entry.key = is_sha256_hex(key) ? key : sha256_hex(key);
  entry.kind = kind;
  entry.payload = std::move(payload);
  entry.created = context_.now;
  transaction_.state().add_action(entry);
}

std::string ActionWriter::key_of(Act act) const { return std::string(name(act)) + " " + std::to_string(transition_); }

void write_down_all(const std::vector<Action>& actions, ActionWriter& writer) {
  for (const Action& action : actions) std::visit([&](const auto& kind) { write_down(kind, writer); }, action);
}

ActionOutcome run_action(const ActionEntry& action, const ActionContext& context) {
  using Run = ActionOutcome (*)(const ActionEntry&, const ActionContext&);
  static const std::map<std::string, Run> kRuns = {
      {"probe", run_probe},       {"redistil", run_redistil},    {"load", run_load},
      {"drop", run_channel_move}, {"promote", run_channel_move}, {"roll_back", run_channel_move},
      {"disable", run_switch},    {"enable", run_switch},        {"webhook", run_post},
      {"alert", run_post}};
  const auto run = kRuns.find(action.kind);
  if (run == kRuns.end())
    throw Error(ErrorKind::kData, context.loop.options.state.string() + ": an action of unknown kind '" + action.kind +
                                      "': a newer specdec wrote it");
  return run->second(action, context);
}

bool is_temporary(int exit_code, const ActionEntry& action) {
  return (exit_code == 74 || exit_code == 75 || exit_code > 128) && action.attempts < kMaxAttempts;
}

ActionOutcome not_given() { return {.text = "its command or URL is no longer given"}; }

ChildEnd run_for(const ActionEntry& action, const ActionContext& context, std::vector<std::string> argv, bool capture) {
  return context.children.run(action, {.argv = std::move(argv),
                                       .environment = {{"SPECDEC_ALARM_REASON", context.loop.memory.reason}},
                                       .capture = capture});
}

}  // namespace specdec::monitor
