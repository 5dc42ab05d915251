// What follows from a look: transitions of the machine and what has to be done outside. Each transition is committed
// together with the actions it asks for; each action is written down before it is begun, and its end together with what
// follows from it. A check that was killed anywhere in between is taken up by the next.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fingerprint.h"
#include "base/model_directory.h"
#include "base/schema/package_manifest.h"
#include "base/schema/validation_report.h"
#include "monitor/machine.h"
#include "monitor/options.h"
#include "monitor/served_target.h"
#include "monitor/state.h"
#include "monitor/target_watch.h"

namespace specdec::monitor {

// What a check knows before it looks, and which target it then found to be served.
struct Facts {
  ResolvedPackage package;
  ValidationReport report;
  ResolvedModel served;  // of an endpoint the package's, where a probe needs it
  // of what lies there; an endpoint shows none: the package's, under another id where the sight says stale
  Fingerprint local;
  bool remote = false;               // --target is an endpoint
  TargetCheck target_check;                 // … and how it looked; of a local target with --full
  Witness witness = Witness::kCopy;  // who the target was looked at by
  Fingerprint target;                // what is served as far as is known: `local`, or what the sources name
  bool unknown = false;              // it is another one whose fingerprint nobody tells

  // What judge_served found: `id` "" = nothing else than `local`.
  void found(const std::string& id, Witness by);
  // Which tiers of the target that a draft is bound to differ from what is served, "" = none. What an endpoint serves
  // now fits no draft for the target that is known to have gone, and any other may be for it.
  std::string misfit(const Fingerprint& bound) const;
};

// The detectors, the charts and the verdict begin again; positions in files stay.
void start_anew(State& state, const std::string& package, const std::string& why, int64_t now);

class Follow {
 public:
  // `lock`: descriptor of <state>.lock, which children keep open. `facts` are read anew by the caller after moved().
  Follow(const CheckOptions& options, const Clock& clock, State& state, int lock, const Facts& facts);

  // Ends what an earlier check had begun, and asks the canary. True if a channel was moved by it.
  bool settle();
  // Within the look's transaction: these.
  void package_seen(bool is_new);
  void nothing_seen();  // instead of looked(): the look ended without a verdict
  void looked(const std::string& verdict, const std::string& reason, const Json& evidence, int64_t records,
              double speedup_now);
  void alarmed(const std::string& alarm_key, const Json& environment);
  // --on-drift: runs until it has ended with exit code 0, while the alarm lasts, and at least once. Returns "trigger"
  // of the result, null without an alarm.
  Json on_drift(const std::string& alarm_key);
  // Actions and what follows from them, until nothing does.
  void work();
  void tell_alertmanager();

  const Memory& memory() const { return memory_; }
  Json transitions() const { return transitions_; }  // of this check
  Json actions() const { return actions_; }          // attempted in this check
  Json waiting() const;                              // why nothing more is done

 private:
  struct Done {
    bool ended = true;  // false: again at the next check
    int code = 0;
    std::string text;
    std::optional<Event> event;  // what follows
    std::string reason;
    Json evidence;
  };
  void in_transaction(const std::function<void()>& f);
  void apply(Event event, const std::string& reason, const Json& evidence);
  void remember(Event event);
  void add(Act act, Event event, int64_t transition);
  void put(const std::string& kind, const std::string& key, Json payload);
  void notify(const Json& event, int64_t transition);

  bool run_pending();
  Done run(const ActionEntry& action);
  Done run_probe(const ActionEntry& action);
  Done run_redistil(const ActionEntry& action);
  Done run_load(const ActionEntry& action);
  Done run_moves(const ActionEntry& action);
  Done run_post(const ActionEntry& action);
  int child(const ActionEntry& action, std::string* output = nullptr);
  std::filesystem::path outcome_of(const ActionEntry& action) const;
  void forget_recorded() const;

  bool ask();
  bool ask_candidate();
  bool ask_canary();
  std::optional<ResolvedPackage> untried();
  void wait(const std::string& reason);
  std::vector<std::string> probe_command(bool off) const;  // empty = none is given, as below
  std::vector<std::string> redistil_command() const;
  std::vector<std::string> argv_of(const ActionEntry& action) const;
  Json redistil_payload() const;
  int64_t now() const { return clock_.unix_seconds(); }

  const CheckOptions& options_;
  const Clock& clock_;
  State& state_;
  const int lock_;
  const Facts& facts_;
  Memory memory_;
  std::optional<ResolvedPackage> found_;  // the candidate of the event that is being applied
  std::set<int64_t> tried_;               // actions, once a check
  bool inside_ = false, moved_ = false, asked_canary_ = false;
  double speedup_now_ = 0;
  std::set<std::string> waiting_;
  Json transitions_ = Json::array(), actions_ = Json::array();
};

}  // namespace specdec::monitor
