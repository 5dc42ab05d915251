// Actions are what the loop does outside the monitor: probes, redistillations, orders to the server, channel moves,
// commands and HTTP posts. Each file of this folder records and runs one kind of action. An action is recorded in the
// state file before it begins, in the same transaction as the state machine's transition that asks for it. Commands and
// URLs are not recorded, because they may hold secrets: a pending action takes them from the options of the check that
// runs it.
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

// ---- Recording actions in the state file.

class ActionWriter {
 public:
  // `transition` is the id of the transition that asks for the actions; 0 means that none was recorded.
  ActionWriter(Transaction& transaction, const LoopContext& context, int64_t transition);

  // Records a pending action. Does nothing if an action with this key exists already.
  void add(const std::string& kind, const std::string& key, Json payload);
  // Returns a key made of the transition and `act`. The key is unique if the transition asks for each act at most once.
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
// Restarting the detectors changes only the state file, so it is done at once, within the transaction.
void write_down(const RestartDetectors& restart, ActionWriter& writer);
void write_down_all(const std::vector<Action>& actions, ActionWriter& writer);

// Resets the drift detectors, the counter charts and the verdict, but not the positions in record files. Adds a row
// with the verdict `why` to the history.
void restart_detectors(State& state, const std::string& package, const std::string& why, int64_t now);

// ---- Running actions.

struct ActionContext {
  LoopContext loop;
  const ActionChildren& children;
};

// The result of one attempt at an action.
struct ActionOutcome {
  bool ended = true;                          // false: the next check tries the action again
  int code = 0;                               // exit code or HTTP status
  std::string text = {};                      // one line about the attempt
  std::optional<Occurrence> occurrence = {};  // event for the state machine; empty = the action caused none
  std::string waiting = {};                   // why `occurrence` is empty; "" = nothing to report
  bool moved_channel = false;                 // the package's channel now names another package
  bool is_impossible = false;                 // the channel's move failed because a package is damaged or missing
  std::string rejected = {};                  // digest of a package that must never be tried again, "" = none
};

// Makes one attempt at a recorded action. Throws Error(kNetwork) if a server does not answer, and Error(kData) for an
// action that cannot be read.
ActionOutcome run_action(const ActionEntry& action, const ActionContext& context);

ActionOutcome run_probe(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_redistil(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_load(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_channel_move(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_switch(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_post(const ActionEntry& action, const ActionContext& context);

inline constexpr int64_t kMaxAttempts = 20;  // after this many attempts an action that does not finish is given up

// Returns whether a command was stopped by a signal, or failed for a reason that may pass, such as a full disk or a
// server that does not answer (exit codes 74 and 75). The next check then repeats the action, at most kMaxAttempts
// times. Such an exit code says nothing about the draft, so it must not lead to the package being rejected.
bool is_temporary(int exit_code, const ActionEntry& action);
// Returns the outcome of an action whose command or URL is missing in this check's options.
ActionOutcome not_given();
// Runs a command for an action, with the reason of the current state in its environment.
ChildEnd run_for(const ActionEntry& action, const ActionContext& context, std::vector<std::string> argv,
                 bool capture = false);

// ---- Functions about one kind of action that other files need.

// Returns whether an alarm can be confirmed by a probe.
bool has_probe(const Policy& policy);

// Returns whether actions of this kind are HTTP posts. Posts never wait for other actions; all other actions run in
// order.
bool is_post(const std::string& kind);
// Records a post of `event` to each webhook.
void write_down_webhooks(const Json& event, ActionWriter& writer);
// Records a post that tells Alertmanager that the alert has ended.
void write_down_all_clear(ActionWriter& writer);
// Posts an alert for the current state to Alertmanager at once. Returns an item for the field "actions" of the check's
// result.
Json renew_alert(const LoopContext& context);

// The kind of the action that runs the command of --on-drift. Such an action belongs to no transition, and runs before
// all other actions. The command runs once for an alarm; if its exit code is not 0, later checks repeat it while the
// alarm lasts.
inline constexpr const char* kOnDrift = "command";
void write_down_on_drift(Transaction& transaction, const std::string& alarm_key, const Json& environment, int64_t now);
// Runs the command of --on-drift if the alarm needs it. Returns the field "trigger" of the check's result; null without
// an alarm.
Json run_on_drift(State& state, const std::string& alarm_key, const ActionContext& context, const Clock& clock);

}  // namespace specdec::monitor
