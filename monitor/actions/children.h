// Child processes run the commands of actions. Each attempt has its own files in <state>.actions/, where its exit code
// stays until the state has it. An attempt that was cut short is resumed under the same number, so nothing runs twice.
#pragma once

#include <filesystem>

#include "monitor/actions/child.h"
#include "monitor/facts/options.h"
#include "monitor/state/state.h"

namespace specdec::monitor {

class ActionChildren {
 public:
  // `lock` is the descriptor of <state>.lock, which the children keep open.
  ActionChildren(const CheckOptions& options, int lock);

  // Runs the order's command to its end, or takes the exit code that an earlier run of this attempt left. Adds the path
  // of the outcome, the lock and SPECDEC_ALARM_KEY to the order. Throws what run_child throws.
  ChildEnd run(const ActionEntry& action, ChildOrder order) const;
  // Removes the files of an attempt once its outcome is in the state.
  void forget(const ActionEntry& action) const;
  // Removes the files of all outcomes that are in the state, in case a check was killed before it could remove them.
  void forget_recorded(const State& state) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path outcome_of(const ActionEntry& action) const;

  const std::filesystem::path folder_;
  const int lock_;
};

}  // namespace specdec::monitor
