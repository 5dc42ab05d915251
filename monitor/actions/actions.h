// Actions are what the loop does outside the monitor: probes, redistillations, orders to the server, channel moves,
// commands and HTTP posts. Each file of this folder handles one kind: it writes the action down and does it. An action
// is written down before it begins, together with the transition that asks for it. Commands and URLs are not written
// down, because they may hold secrets: a pending action uses the commands and URLs of the current check's options.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "monitor/actions/children.h"
#include "monitor/machine/loop_context.h"
#include "monitor/machine/machine.h"
#include "monitor/state/state.h"
#include "monitor/state/transaction.h"

namespace specdec::monitor {

// ---- Writing actions down.

class ActionWriter {
 public:
  // `transition` is the id of the transition that asks for the actions; 0 means that none was recorded.
  ActionWriter(Transaction& transaction, const LoopContext& context, int64_t transition);

  // Adds an action that is still to be done. If an action with this key exists already, it stays as it is.
  void add(const std::string& kind, const std::string& key, Json payload);
  // Returns a key for this act, which is unique as long as the transition asks for the act only once.
  std::string key_of(Act act) const;

  Transaction& transaction() { return transaction_; }
  const LoopContext& context() const { return context_; }
  int64_t transition() const { return transition_; }

 private:
  Transaction& transaction_;
  const LoopContext context_;
  const int64_t transition_;
};

void write_down(const Probe& probe, ActionWriter& writer);
void write_down(const Redistil& redistil, ActionWriter& writer);
void write_down(const LoadCandidate& load, ActionWriter& writer);
void write_down(const DropCandidate& drop, ActionWriter& writer);
void write_down(const Promote& promote, ActionWriter& writer);
void write_down(const RollBack& roll_back, ActionWriter& writer);
void write_down(const Disable& disable, ActionWriter& writer);
void write_down(const Enable& enable, ActionWriter& writer);
// This action does nothing outside the monitor: the detectors are restarted within the transaction.
void write_down(const RestartDetectors& restart, ActionWriter& writer);
void write_down_all(const std::vector<Action>& actions, ActionWriter& writer);

// Restarts the detectors, the charts and the verdict; positions in record files stay. Adds a row to the history with
// `why` as its verdict.
void restart_detectors(State& state, const std::string& package, const std::string& why, int64_t now);

// ---- Doing actions.

struct ActionContext {
  LoopContext loop;
  const ActionChildren& children;
};

// The result of one attempt at an action.
struct ActionOutcome {
  bool ended = true;                          // false: the next check tries the action again
  int code = 0;                               // exit code or HTTP status
  std::string text = {};                      // one line about the attempt
  std::optional<Occurrence> occurrence = {};  // the event that follows, if any
  std::string waiting = {};                   // why nothing follows, "" = there is nothing to say
  bool moved_channel = false;                 // the package's channel now names another package
  bool is_impossible = false;                 // a channel cannot be moved because a package is damaged or missing
  std::string rejected = {};                  // digest of a package that must never be tried again, "" = none
};

// Makes one attempt at an action that was written down. Throws Error(kNetwork) if a server does not answer, and
// Error(kData) for an action that cannot be read.
ActionOutcome run_action(const ActionEntry& action, const ActionContext& context);

ActionOutcome run_probe(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_redistil(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_load(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_channel_move(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_switch(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_post(const ActionEntry& action, const ActionContext& context);

inline constexpr int64_t kMaxAttempts = 20;  // attempts at an action that does not finish, before it is given up

// Returns whether a command was stopped by a signal, or failed for a reason that may pass, such as a full disk or a
// server that does not answer (exit codes 74 and 75). It then runs again at the next check, at most kMaxAttempts times.
// Such an exit code must not reject the package, because it says nothing about the package or the draft.
bool is_temporary(int exit_code, const ActionEntry& action);
// Returns the outcome of an action whose command or URL is missing in this check's options.
ActionOutcome not_given();
// Runs a command for an action, with the reason of the current state in its environment.
ChildEnd run_for(const ActionEntry& action, const ActionContext& context, std::vector<std::string> argv,
                 bool capture = false);

// ---- Functions of one kind that other files need.

// Returns whether an alarm can be confirmed by a probe.
bool has_probe(const Policy& policy);

// Returns whether this kind is a post. Posts do not wait for other actions; the other actions wait for each other.
bool is_post(const std::string& kind);
// Writes down one post for each webhook.
void write_down_webhooks(const Json& event, ActionWriter& writer);
// Writes down that Alertmanager must be told that an alert has ended.
void write_down_all_clear(ActionWriter& writer);
// Tells Alertmanager at once that the current state needs attention. Returns an item of the result's "actions".
Json renew_alert(const LoopContext& context);

// --on-drift runs at least once for an alarm. If its exit code is not 0, later checks run it again while the alarm
// lasts. It belongs to no transition, and runs before the other actions.
inline constexpr const char* kOnDrift = "command";
void write_down_on_drift(Transaction& transaction, const std::string& alarm_key, const Json& environment, int64_t now);
// Returns the result's "trigger", null without an alarm.
Json run_on_drift(State& state, const std::string& alarm_key, const ActionContext& context, const Clock& clock);

}  // namespace specdec::monitor
