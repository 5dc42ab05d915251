// The loop's state machine decides which state follows from an event, and which actions must be done. It is a pure
// function: it reads no state file, clock or file system, and gets time and facts as arguments. docs/monitor.md lists
// every row of the transition table, and a test compares the list with the code.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "base/verdict.h"

namespace specdec::monitor {

enum class Stage {
  kHealthy,
  kWarn,
  kSuspect,
  kConfirmed,
  kRedistilling,
  kCandidate,
  kCanary,
  kRolledBack,
  kStaleTarget,
  kDisabled
};
inline constexpr int kStages = 10;

enum class Event {
  // Events from the monitored traffic, that is its records and scraped counters. kRelapse is an alarm within the bake
  // time of a promoted draft (the time for which it stays under observation).
  kQuiet,
  kAmber,
  kAlarm,
  kRelapse,
  kSlow,
  kStale,
  // Results of a probe. With --confirm alarm, the alarm itself causes kConfirmed without a probe.
  kConfirmed,
  kRefuted,
  kWorth,
  // kGo: a redistillation may begin. kFailed: the redistillation ended without a new package.
  kGo,
  kFailed,
  // kCandidate: the candidate channel has an untried draft. kWithdrawn: the channel no longer has the draft on trial.
  kCandidate,
  kWithdrawn,
  // The server's answers about the candidate's trial, and decisions from the scores of this trial.
  kOnTrial,
  kRefused,
  kGone,
  kBetter,
  kWorse,
  kExpired,
  // kNewPackage: another package is in the package's channel. kAcknowledged: the operator has acknowledged the alarm.
  kNewPackage,
  kAcknowledged
};
inline constexpr int kEvents = 21;

enum class Act { kProbe, kRedistil, kLoad, kDrop, kPromote, kRollBack, kDisable, kEnable, kRestart };

const char* name(Stage stage);  // returns "HEALTHY", …
const char* name(Event event);  // returns "quiet", …
const char* name(Act act);      // returns "probe", …
// Returns the stage with this name. Throws Error(kData) if there is none.
Stage stage_of(const std::string& name, const std::string& where);

// The state that follows, and the actions to do, in one row of the transition table. A row that only repeats actions
// has `to` equal to the old state.
struct Move {
  Stage to;
  std::vector<Act> acts;
};
// Returns nothing if the event has no effect in this state.
std::optional<Move> move_on(Stage from, Event event);

// Returns whether entering this state turns speculation on, if the loop had turned it off.
bool speculates(Stage stage);
// Returns true for the states that need no attention from anybody: HEALTHY and WARN.
bool is_calm(Stage stage);

// The loop's memory between checks, stored as one JSON value in the state file. (The detectors have values of their
// own.)
struct Memory {
  Stage stage = Stage::kHealthy;
  int64_t since = 0;  // when the loop entered `stage`, in unix seconds
  std::string reason;
  std::string goal;                // fingerprint of the target for which a draft is being trained or tried
  std::string key;                 // idempotency key of the newest redistillation
  std::string candidate;           // digest of the package being tried, "" = none
  std::set<std::string> rejected;  // digests that were tried and must never be tried again
  std::string promoted, former;    // digests of the package that won the last trial, and of the package before it
  int64_t bake_until = 0;
  // The digest of the package to which the loop itself moves the channel. When a check finds this package in the
  // channel, it does not count as new.
  std::string expected;
  bool off = false;     // the loop has turned speculation off
  int64_t records = 0;  // number of acceptance records read so far
  int64_t false_alarms = 0;
  // For each of the last three redistillations: the acceptance of the candidate minus that of the package before it,
  // both measured in the gate's roll-outs.
  std::vector<double> regained;
  // One line of text for each alert from Alertmanager, by the alert's key; "" once the loop has reacted to the alert.
  std::map<std::string, std::string> alerts;
};
Json to_json(const Memory& memory);
Memory memory_from_json(const Json& object, const std::string& where);

// Replaces times in the future, which came from a clock that was wrong. Otherwise the loop would wait until then.
void disbelieve_future(Memory& memory, int64_t now, double bake_hours);

// Results of a check from which event_of() finds the event: the verdict, the digest of the package in the channel, the
// fingerprint of the served target.
struct MachineInput {
  Verdict verdict = Verdict::kInconclusive;
  std::string package, target;
  bool former_fits = false;  // the package before the promoted one fits `target`
};
// Returns the event for a check's result, or nothing if there is too little data or nothing new. Another served target
// is nothing new while the loop redistils, or tries a candidate, for that target.
std::optional<Event> event_of(const Memory& memory, const MachineInput& input, int64_t now);

// An event, with the reason and the evidence that are recorded with it.
struct Occurrence {
  Event event;
  std::string reason;
  Json evidence = Json::object();
  // Set only for kCandidate: the candidate's digest, and its acceptance minus that of the current package, both
  // measured in the gate's roll-outs.
  std::string candidate = {};
  double regained = 0;
};

// The facts of a check that the machine needs.
struct MachineContext {
  int64_t now = 0;
  std::string package;          // digest of the package in the channel
  std::string draft;            // fingerprint of the package's draft
  std::string target;           // fingerprint of the served target
  std::string epoch;            // counts the restarts of the detectors
  int64_t redistillations = 0;  // number of redistillations begun so far
  double bake_hours = 24;
  bool can_disable = false, can_enable = false;  // the user has given a command that turns speculation off, on
};

// The actions that a transition may ask for. Each struct has what the state machine decides about the action. For each
// struct there is a file in monitor/actions/ that adds the other details and runs the action.
struct Probe {
  static constexpr Act kAct = Act::kProbe;
  std::string key;        // the same for a whole day, so that the probe runs at most once a day
  bool of_speed = false;  // true: measures whether speculation would pay again; false: whether acceptance has dropped
};
struct Redistil {
  static constexpr Act kAct = Act::kRedistil;
  std::string key, target;
  int64_t records = 0;  // number of records read before the redistillation
};
struct LoadCandidate {
  static constexpr Act kAct = Act::kLoad;
  std::string digest;
};
struct DropCandidate {
  static constexpr Act kAct = Act::kDrop;
  std::string digest;
  Event why;
  bool has_lost = false;  // the candidate lost the trial, so the candidate channel must be rolled back too
};
struct Promote {
  static constexpr Act kAct = Act::kPromote;
  std::string digest, why;
};
struct RollBack {
  static constexpr Act kAct = Act::kRollBack;
  // Moves the channel back from the package `digest` to the package before it, `former`.
  std::string digest, former, why;
};
struct Disable {
  static constexpr Act kAct = Act::kDisable;
  std::string key;
};
struct Enable {
  static constexpr Act kAct = Act::kEnable;
};
struct RestartDetectors {
  static constexpr Act kAct = Act::kRestart;
  Event why;
};
using Action =
    std::variant<Probe, Redistil, LoadCandidate, DropCandidate, Promote, RollBack, Disable, Enable, RestartDetectors>;

struct Transition {
  Memory memory;                // the new memory
  Stage from;                   // the old state; the new one is in `memory`
  std::vector<Action> actions;  // actions to record, in this order
  // True if the state changes, or a new candidate is tried in the same state. Then the transition is recorded and
  // posted, and the pending actions of the old state are ended. False if only the actions are repeated.
  bool is_new_stage = false;
};
// Returns nothing if the event has no effect in the current state.
std::optional<Transition> advance(const Memory& memory, const Occurrence& occurrence, const MachineContext& context);

// Gives up a channel move that is impossible. `rejected` is the digest of a package that must never be tried again, ""
// = none.
void give_up_move(Memory& memory, const std::string& rejected);

}  // namespace specdec::monitor
