// Actions are what the loop does outside: probes, redistillations, orders to the server, moves of channels, commands
// and posts. Each file of this folder holds one kind: what is written down of it, and how it is done. An action is
// written down together with the transition that asks for it and before it begins. Commands and URLs are not written
// down, because they may hold secrets: what is left to do is done with those of the check that does it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "monitor/actions/children.h"
#include "monitor/loop_context.h"
#include "monitor/machine.h"
#include "monitor/state.h"
#include "monitor/transaction.h"

namespace specdec::monitor {

// ---- Writing actions down.

class ActionWriter {
 public:
  // `transition` is the id of the transition that asks for the actions, 0 = none was recorded.
  ActionWriter(Transaction& transaction, const LoopContext& context, int64_t transition);

  // Adds an action that is still to be done. One that has the same key and is there already stays as it is.
  void add(const std::string& kind, const std::string& key, Json payload);
  // Returns a key that this transition uses once.
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
// Nothing outside has to be done for this one: the detectors are restarted in the transaction.
void write_down(const RestartDetectors& restart, ActionWriter& writer);
void write_down_all(const std::vector<Action>& actions, ActionWriter& writer);

// The detectors, the charts and the verdict begin again; positions in files stay. `why` becomes the verdict of a row of
// the history.
void restart_detectors(State& state, const std::string& package, const std::string& why, int64_t now);

// ---- Doing actions.

struct ActionContext {
  LoopContext loop;
  const ActionChildren& children;
};

// One attempt at an action ended so.
struct ActionOutcome {
  bool ended = true;                          // else the next check tries the action again
  int code = 0;                               // is an exit code or an HTTP status
  std::string text = {};                      // is one line about the attempt
  std::optional<Occurrence> occurrence = {};  // follows from it
  std::string waiting = {};                   // says why nothing follows, "" = there is nothing to say
  bool moved_channel = false;                 // the package's channel names another package now
  bool is_impossible = false;                 // a channel cannot be moved, because a package is damaged or gone
  std::string rejected = {};                  // is the digest of a package that is never to be tried again, "" = none
};

// Makes one attempt at an action that was written down. Throws Error(kNetwork) where a server does not answer, and
// Error(kData) for an action that cannot be read.
ActionOutcome run_action(const ActionEntry& action, const ActionContext& context);

ActionOutcome run_probe(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_redistil(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_load(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_channel_move(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_switch(const ActionEntry& action, const ActionContext& context);
ActionOutcome run_post(const ActionEntry& action, const ActionContext& context);

inline constexpr int64_t kMaxAttempts = 20;  // are made of what does not come to its end, before it is given up

// Returns whether a command was stopped by a signal or by something that may pass, a failing or full disk among it.
// Then it runs again at the next check, but not for ever. Such an end says nothing about the package, which would be
// rejected otherwise, nor about the draft.
bool is_temporary(int exit_code, const ActionEntry& action);
// Ends an action whose command or URL this check was not given.
ActionOutcome not_given();
// Runs a command for an action, with the reason of the present state in its environment.
ChildEnd run_for(const ActionEntry& action, const ActionContext& context, std::vector<std::string> argv,
                 bool capture = false);

// ---- Parts of single kinds that others need.

// Returns whether an alarm can be confirmed by a probe.
bool has_probe(const Policy& policy);

// Posts are tried beside the other actions, which wait for each other.
bool is_post(const std::string& kind);
// Writes a post to each webhook down.
void write_down_webhooks(const Json& event, ActionWriter& writer);
// Writes down that Alertmanager is to be told of the end of an alert.
void write_down_all_clear(ActionWriter& writer);
// Tells Alertmanager at once that the present state needs attention. Returns an item of "actions" of the result.
Json renew_alert(const LoopContext& context);

// --on-drift runs until it has ended with exit code 0, while its alarm lasts, and at least once. It is no action of a
// transition, and runs before the others.
inline constexpr const char* kOnDrift = "command";
void write_down_on_drift(Transaction& transaction, const std::string& alarm_key, const Json& environment, int64_t now);
// Returns "trigger" of the result, null without an alarm.
Json run_on_drift(State& state, const std::string& alarm_key, const ActionContext& context, const Clock& clock);

}  // namespace specdec::monitor
