// Children do actions. Each attempt has files of its own in <state>.actions/, where the child leaves its end until
// that is on record. An attempt that was cut short is taken up under the same number, and so nothing runs twice.
#pragma once

#include <filesystem>

#include "monitor/child.h"
#include "monitor/options.h"
#include "monitor/state.h"

namespace specdec::monitor {

class ActionChildren {
 public:
  // `lock` is the descriptor of <state>.lock, which children keep open.
  ActionChildren(const CheckOptions& options, int lock);

  // Runs the order's command to its end, or takes the end that it has left. The outcome's place, the lock and
  // SPECDEC_ALARM_KEY are added to the order. Throws what run_child throws.
  ChildEnd run(const ActionEntry& action, ChildOrder order) const;
  // Removes the end of an attempt, once it is on record.
  void forget(const ActionEntry& action) const;
  // Removes the ends that are on record already, because their check was killed before it could remove them.
  void forget_recorded(const State& state) const;

  const std::filesystem::path& folder() const { return folder_; }

 private:
  std::filesystem::path outcome_of(const ActionEntry& action) const;

  const std::filesystem::path folder_;
  const int lock_;
};

}  // namespace specdec::monitor
