// The loop driver does what follows from a check. It applies what has happened to the machine, does the actions that
// the machine asks for, and asks the server and the channels, until nothing more follows. A transition is committed
// together with the actions it asks for. An action is written down before it begins, and its end is committed together
// with what follows from it. So the next check takes up a check that was killed anywhere in between.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "base/clock.h"
#include "base/json.h"
#include "base/verdict.h"
#include "monitor/actions/actions.h"
#include "monitor/facts.h"
#include "monitor/machine.h"
#include "monitor/options.h"
#include "monitor/questions.h"
#include "monitor/state.h"
#include "monitor/transaction.h"

namespace specdec::monitor {

// The sources led to this verdict.
struct ObservedVerdict {
  Verdict verdict = Verdict::kInconclusive;
  std::string reason;   // is as in Judged
  Json evidence;        // is recorded with a transition
  int64_t records = 0;  // counts the records that were read
};

// A driver lives for one check, and is of no use after it has thrown.
class LoopDriver {
 public:
  // `lock` is the descriptor of <state>.lock, which children keep open. Throws Error(kUsage) for a policy that names no
  // channels, Error(kData) for a memory that cannot be read.
  LoopDriver(const CheckOptions& options, const Clock& clock, State& state, int lock);

  // Ends what an earlier check had begun, and asks the canary. Returns whether the package's channel was moved, so that
  // the facts have to be gathered anew.
  bool settle(const Facts& facts);
  // Applies that another package is in the channel, or that the operator acknowledges the alarm.
  void package_seen(Transaction& transaction, const Facts& facts, bool is_new);
  // Applies the verdict, and the alerts of Alertmanager. Throws Error(kData) for alerts that cannot be read.
  void observed(Transaction& transaction, const Facts& facts, const ObservedVerdict& observed);
  // Runs --on-drift. Returns "trigger" of the result, null without an alarm.
  Json on_drift(const Facts& facts, const std::string& alarm_key);
  // Does actions and what follows from them until nothing does. `speedup_now` is as in RedistilRequest.
  void work(const Facts& facts, double speedup_now);
  void tell_alertmanager(const Facts& facts);

  const Memory& memory() const { return memory_; }
  Json transitions() const { return transitions_; }  // were made in this check
  Json actions() const { return actions_; }          // were attempted in this check
  Json waiting() const { return waiting_; }          // says why nothing more is done

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
  std::set<int64_t> attempted_;  // holds actions, each of which is attempted once a check
  bool asked_canary_ = false;    // the scores are asked for once a check
  bool moved_channel_ = false;
  std::set<std::string> waiting_;
  Json transitions_ = Json::array(), actions_ = Json::array();
};

}  // namespace specdec::monitor
