// The loop's state machine: which state follows from what was seen, and what has to be done on the way. Pure;
// docs/monitor.md lists every row, and a test compares the two.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"

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
  kQuiet,
  kAmber,
  kAlarm,
  kRelapse,
  kSlow,
  kStale,  // a look; relapse: an alarm within the bake time of a promoted draft
  kConfirmed,
  kRefuted,
  kWorth,  // a probe; kConfirmed also by the alarm itself where the user says so
  kGo,
  kFailed,  // a redistillation: nothing stands against it; it ended with nothing new
  kCandidate,
  kWithdrawn,  // the candidate channel names a draft that was not tried; no longer
  kOnTrial,
  kRefused,
  kGone,
  kBetter,
  kWorse,
  kExpired,  // the server and the canary
  kNewPackage,
  kAcknowledged  // another package in the channel; the operator
};
inline constexpr int kEvents = 21;

enum class Act { kProbe, kRedistil, kLoad, kDrop, kPromote, kRollBack, kDisable, kEnable, kRestart };

const char* name(Stage stage);                                      // "HEALTHY", …
const char* name(Event event);                                      // "quiet", …
const char* name(Act act);                                          // "probe", …
Stage stage_of(const std::string& name, const std::string& where);  // throws Error(kData)

struct Move {
  Stage to;
  std::vector<Act> acts;
};
// Nothing: the event does not concern this state. `to` may be the state itself: only the acts are wanted (again).
std::optional<Move> move_on(Stage from, Event event);

// Whether speculation that was turned off is turned on again on the way into this state.
bool speculates(Stage stage);

// What outlives a look beside the detectors: one JSON value of the state file.
struct Memory {
  Stage stage = Stage::kHealthy;
  int64_t since = 0;  // unix seconds
  std::string reason;
  std::string goal;                // fingerprint of the target that the redistillation or the candidate is for
  std::string key;                 // idempotency key of the newest redistillation
  std::string candidate;           // digest of the package being tried, "" = none
  std::set<std::string> rejected;  // digests that were tried: never again
  std::string promoted, former;    // by the last canary: package now, package before
  int64_t bake_until = 0;
  std::string expected;  // digest that a move of ours puts into the channel: no news when it is seen there
  bool off = false;      // speculation was turned off by us
  int64_t records = 0;   // acceptance records read so far
  int64_t false_alarms = 0;
  // of the last three redistillations: rolled-out acceptance less that of the package before
  std::vector<double> regained;
  std::map<std::string, std::string> alerts;  // of Alertmanager: key → one line, "" once it was answered
};
Json to_json(const Memory& memory);
Memory memory_from_json(const Json& object, const std::string& where);

// Times that a clock which had run ahead wrote down are not waited for.
void disbelieve_future(Memory& memory, int64_t now, double bake_hours);

// A check tells the machine its verdict, the digest of the package in the channel and the fingerprint of the target as
// it is served.
struct MachineInput {
  std::string verdict, package, target;
  bool former_fits = false;  // Memory::former is bound to this target
};
// Returns nothing where there is too little data or nothing new. A target that the redistillation under way is for is
// no news.
std::optional<Event> event_of(const Memory& memory, const MachineInput& input, int64_t now);

}  // namespace specdec::monitor
