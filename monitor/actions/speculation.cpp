// Turns speculation off and on by the user's commands, because the server has no command for it.
#include "monitor/actions/actions.h"

namespace specdec::monitor {

void write_down(const Disable& disable, ActionWriter& writer) { writer.add("disable", disable.key, Json::object()); }

void write_down(const Enable& enable, ActionWriter& writer) {
  writer.add("enable", writer.key_of(enable.kAct), Json::object());
}

ActionOutcome run_switch(const ActionEntry& action, const ActionContext& context) {
  const Policy& p = context.loop.options.policy;
  const std::string& command = action.kind == "disable" ? p.disable : p.enable;
  if (command.empty()) return not_given();
  const int code = run_for(action, context, shell(command)).code;
  return {.ended = code == 0, .code = code, .text = "exit " + std::to_string(code)};
}

}  // namespace specdec::monitor
