// The loop's state machine decides which state follows from what happened, and which actions are to be done on the way.
// It is pure: it reads no state file, no clock and no file system, so time and all facts are arguments. docs/monitor.md
// lists every row, and a test compares the two.
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
  // A look at the sources leads to these. A relapse is an alarm within the bake time of a promoted draft.
  kQuiet,
  kAmber,
  kAlarm,
  kRelapse,
  kSlow,
  kStale,
  // A probe leads to these, and the alarm itself to kConfirmed where the user says so.
  kConfirmed,
  kRefuted,
  kWorth,
  // Nothing stands against a redistillation, or one has ended with nothing new.
  kGo,
  kFailed,
  // The candidate channel names a draft that was not tried yet, or no longer does.
  kCandidate,
  kWithdrawn,
  // The server and the scores of the canary lead to these.
  kOnTrial,
  kRefused,
  kGone,
  kBetter,
  kWorse,
  kExpired,
  // Another package is in the channel, or the operator has looked into the alarm.
  kNewPackage,
  kAcknowledged
};
inline constexpr int kEvents = 21;

enum class Act { kProbe, kRedistil, kLoad, kDrop, kPromote, kRollBack, kDisable, kEnable, kRestart };

const char* name(Stage stage);  // returns "HEALTHY", …
const char* name(Event event);  // returns "quiet", …
const char* name(Act act);      // returns "probe", …
// Throws Error(kData) for a text that names no stage.
Stage stage_of(const std::string& name, const std::string& where);

// A row of the table leads to `to`, which may be the state itself where only the acts are wanted (again).
struct Move {
  Stage to;
  std::vector<Act> acts;
};
// Returns nothing where the event does not concern this state.
std::optional<Move> move_on(Stage from, Event event);

// Returns whether speculation that was turned off is turned on again on the way into this state.
bool speculates(Stage stage);
// Returns whether this state needs nobody's attention.
bool is_calm(Stage stage);

// The memory outlives a check, beside the detectors, as one JSON value of the state file.
struct Memory {
  Stage stage = Stage::kHealthy;
  int64_t since = 0;  // is in unix seconds
  std::string reason;
  std::string goal;                // is the fingerprint of the target that the redistillation or the candidate is for
  std::string key;                 // is the idempotency key of the newest redistillation
  std::string candidate;           // is the digest of the package being tried, "" = none is
  std::set<std::string> rejected;  // holds digests that were tried and are never tried again
  std::string promoted, former;    // are the packages after and before the last canary that won
  int64_t bake_until = 0;
  std::string expected;  // is the digest that a move of ours puts into the channel, where seeing it is no news
  bool off = false;      // we have turned speculation off
  int64_t records = 0;   // counts the acceptance records read so far
  int64_t false_alarms = 0;
  // Holds for each of the last three redistillations by how much rolled-out acceptance rose over the package before.
  std::vector<double> regained;
  // Holds a line for each alert of Alertmanager by its key, "" once the alert was answered.
  std::map<std::string, std::string> alerts;
};
Json to_json(const Memory& memory);
Memory memory_from_json(const Json& object, const std::string& where);

// Moves times that a clock which had run ahead wrote down to where they are not waited for.
void disbelieve_future(Memory& memory, int64_t now, double bake_hours);

// A check tells the machine its verdict, the digest of the package in the channel and the fingerprint of the target as
// it is served.
struct MachineInput {
  Verdict verdict = Verdict::kInconclusive;
  std::string package, target;
  bool former_fits = false;  // Memory::former is bound to this target
};
// Returns nothing where there is too little data or nothing new. A target that the redistillation under way is for is
// no news.
std::optional<Event> event_of(const Memory& memory, const MachineInput& input, int64_t now);

// An event has happened, and this is recorded of it.
struct Occurrence {
  Event event;
  std::string reason;
  Json evidence = Json::object();
  // These belong to kCandidate: the digest of the package, and its rolled-out acceptance less the present package's.
  std::string candidate = {};
  double regained = 0;
};

// The machine needs these facts of a check.
struct MachineContext {
  int64_t now = 0;
  std::string package;          // is the digest of the package in the channel
  std::string draft;            // is the fingerprint of its draft
  std::string target;           // is the fingerprint of the target as served
  std::string epoch;            // numbers the detectors' starts
  int64_t redistillations = 0;  // counts those that were begun so far
  double bake_hours = 24;
  bool can_disable = false, can_enable = false;  // a command is given for it
};

// A transition asks for these actions, and each holds what the machine knows of it. A file of monitor/actions/ says for
// each kind what else is written down with it, and how it is done.
struct Probe {
  static constexpr Act kAct = Act::kProbe;
  std::string key;        // makes the same question be asked once a day
  bool of_speed = false;  // asks whether speculation would pay again, else whether acceptance has dropped
};
struct Redistil {
  static constexpr Act kAct = Act::kRedistil;
  std::string key, target;
  int64_t records = 0;  // were read before it
};
struct LoadCandidate {
  static constexpr Act kAct = Act::kLoad;
  std::string digest;
};
struct DropCandidate {
  static constexpr Act kAct = Act::kDrop;
  std::string digest;
  Event why;
  bool has_lost = false;  // the candidate channel is rolled back, too
};
struct Promote {
  static constexpr Act kAct = Act::kPromote;
  std::string digest, why;
};
struct RollBack {
  static constexpr Act kAct = Act::kRollBack;
  std::string digest, former, why;  // name the package that leaves the channel, and the one that it had before
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
Act act_of(const Action& action);

struct Transition {
  Memory memory;                // is what is to be remembered from here on
  Stage from;                   // is the state before; the one after is in the memory
  std::vector<Action> actions;  // are to be written down in this order
  // The transition is recorded and told, and what the former state was waiting for is not wanted any more. Another
  // candidate is a new stage, too; else a state that follows itself only wants its actions again.
  bool is_new_stage = false;
};
// Returns nothing where the event does not concern the present state.
std::optional<Transition> advance(const Memory& memory, const Occurrence& occurrence, const MachineContext& context);

// Forgets a move of the channel that turned out to be impossible. `rejected` is the digest that is never to be tried
// again, "" = none.
void give_up_move(Memory& memory, const std::string& rejected);

}  // namespace specdec::monitor
