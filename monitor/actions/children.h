// Runs the commands of actions as child processes. Each attempt has its own files in <state>.actions/, which hold the
// exit code until it is recorded in the state. If the monitor is killed, the next check continues the attempt under the
// same number, so no command runs twice.
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

  // Runs the order's command and waits for it, or returns the exit code that an earlier run of this attempt wrote.
  // First adds the outcome's path, the lock and SPECDEC_ALARM_KEY to the order. Throws what run_child throws.
  ChildEnd run(const ActionEntry& action, ChildOrder order) const;
  // Removes the files of an attempt; call it once the attempt's outcome is recorded in the state.
  void forget(const ActionEntry& action) const;
  // Removes the files of all outcomes that are recorded in the state. A check that was killed may have left such files.
  void forget_recorded(const State& state) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path outcome_of(const ActionEntry& action) const;

  const std::filesystem::path folder_;
  const int lock_;
};

}  // namespace specdec::monitor
