#include "monitor/actions/children.h"

#include <set>
#include <string>
#include <system_error>

#include "base/file.h"
#include "base/sha256.h"

namespace specdec::monitor {

ActionChildren::ActionChildren(const CheckOptions& options, int lock)
    : folder_(options.state.string() + ".actions"), lock_(lock) {}

fs::path ActionChildren::outcome_of(const ActionEntry& action) const {
  return folder_ / (sha256_hex(action.key).substr(0, 24) + "-" + std::to_string(action.attempts));
}

ChildEnd ActionChildren::run(const ActionEntry& action, ChildOrder order) const {
  order.environment.emplace_back("SPECDEC_ALARM_KEY", action.key);
  order.outcome = outcome_of(action);
  order.lock = lock_;
  return run_child(order);
}

void ActionChildren::forget(const ActionEntry& action) const { forget_outcome(outcome_of(action)); }

void ActionChildren::forget_recorded(const State& state) const {
  std::set<std::string> under_way;
  for (const ActionEntry& action : state.pending_actions())
    if (action.started) under_way.insert(outcome_of(action).filename().string());
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder_, none)) {
    const fs::path& file = entry.path();
    const bool is_end = file.extension() == ".code" || file.extension() == ".out";
    if (is_end && !under_way.contains(file.stem().string())) forget_outcome(file.parent_path() / file.stem());
  }
}

}  // namespace specdec::monitor
