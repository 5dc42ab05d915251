// The loop driver acts on the result of a check. It passes events to the state machine, runs the actions that the
// machine asks for, and queries the server and the channels, until there are no further events. A transition is
// committed together with the actions that it asks for. Each action is recorded before it begins, and its end is
// committed together with the transition that it causes. So if a check is killed at any point, the next check continues
// its work.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "base/verdict.h"
#include "monitor/actions/actions.h"
#include "monitor/actions/questions.h"
#include "monitor/check_report.h"
#include "monitor/facts/facts.h"
#include "monitor/facts/options.h"
#include "monitor/machine/machine.h"
#include "monitor/state/state.h"
#include "monitor/state/transaction.h"

namespace specdec::monitor {

// The verdict on the sources.
struct ObservedVerdict {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;   // one line, as in Judged (observation.h)
  Json evidence;        // the evidence to record with a transition
  int64_t records = 0;  // number of records read
};

// A driver lives for one check, and must not be used after it has thrown.
class LoopDriver {
 public:
  // `lock` is the descriptor of <state>.lock, which children keep open. Throws Error(kUsage) if the policy needs the
  // package or the candidate to be a channel and it is not, Error(kData) if the loop's memory in `state` cannot be
  // read.
  LoopDriver(const CheckOptions& options, const Clock& clock, State& state, int lock);

  // Finishes the actions that an earlier check began, and queries the scores of the candidate on trial. Returns whether
  // the package's channel was moved; the caller must then gather the facts again.
  bool settle(const Facts& facts);
  // Passes two events to the state machine: another package is in the channel (`is_new`), and the operator acknowledges
  // an alarm.
  void package_seen(Transaction& transaction, const Facts& facts, bool is_new);
  // Passes the events of the verdict and of Alertmanager's alerts to the state machine. Throws Error(kData) for alerts
  // that cannot be read.
  void observed(Transaction& transaction, const Facts& facts, const ObservedVerdict& observed);
  // Runs the command of --on-drift. Returns the field "trigger" of the check's result; null without an alarm.
  Json on_drift(const Facts& facts, const std::string& alarm_key);
  // Runs pending actions and passes the resulting events to the state machine, until there are no further events.
  // For `speedup_now` see RedistilRequest.
  void work(const Facts& facts, double speedup_now);
  void tell_alertmanager(const Facts& facts);

  const Memory& memory() const { return memory_; }
  const std::vector<MadeTransition>& transitions() const { return transitions_; }  // the transitions made in this check
  Json actions() const { return actions_; }  // the actions attempted in this check
  Json waiting() const { return waiting_; }  // the reasons why nothing more is done

 private:
  int64_t now() const { return clock_.unix_seconds(); }
  LoopContext context(const Facts& facts) const { return {options_, facts, memory_, now()}; }
  void wait(const std::string& reason);

  bool follow(const Facts& facts, const Answer& answer);
  void apply(Transaction& transaction, const Facts& facts, const Occurrence& occurrence);
  int64_t record(Transaction& transaction, const Facts& facts, Stage old_stage, const Occurrence& occurrence);
  void write_memory(Transaction& transaction) const;

  bool run_pending(const Facts& facts);
  bool attempt(ActionEntry action, const Facts& facts);
  void take_alerts();
  bool ask_for_scores(const Facts& facts);
  bool ask(const Facts& facts, double speedup_now);

  const CheckOptions& options_;
  const Clock& clock_;
  State& state_;
  const ActionChildren children_;
  Memory memory_;
  std::set<int64_t> attempted_;  // ids of the actions attempted, because each gets one attempt per check
  bool asked_canary_ = false;    // a trial's scores are queried at most once per check
  bool moved_channel_ = false;
  std::set<std::string> waiting_;
  std::vector<MadeTransition> transitions_;
  Json actions_ = Json::array();
};

}  // namespace specdec::monitor
