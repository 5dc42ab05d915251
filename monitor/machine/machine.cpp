#include "monitor/machine/machine.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/sha256.h"
#include "monitor/facts/served_target.h"

namespace specdec::monitor {

namespace {

constexpr std::array<const char*, kStages> kStageNames = {"HEALTHY",      "WARN",      "SUSPECT", "CONFIRMED",
                                                          "REDISTILLING", "CANDIDATE", "CANARY",  "ROLLED_BACK",
                                                          "STALE_TARGET", "DISABLED"};
constexpr std::array<const char*, kEvents> kEventNames = {
    "quiet",   "amber", "alarm",  "relapse", "slow",      "stale",       "confirmed",
    "refuted", "worth", "go",     "failed",  "candidate", "withdrawn",   "on_trial",
    "refused", "gone",  "better", "worse",   "expired",   "new_package", "acknowledged"};
constexpr std::array<const char*, 9> kActNames = {"probe",     "redistil", "load",   "drop",   "promote",
                                                  "roll_back", "disable",  "enable", "restart"};

struct Row {
  std::vector<Stage> from;
  Event on;
  Stage to;
  std::vector<Act> acts;
};

const std::vector<Row>& rows() {
  using enum Stage;
  static const std::vector<Row> kRows = {
      {{kWarn, kSuspect, kRolledBack, kStaleTarget}, Event::kQuiet, kHealthy, {}},
      {{kHealthy, kSuspect, kRolledBack, kStaleTarget}, Event::kAmber, kWarn, {}},
      {{kHealthy, kWarn, kSuspect, kRolledBack, kStaleTarget}, Event::kAlarm, kSuspect, {Act::kProbe}},
      {{kHealthy, kWarn}, Event::kRelapse, kRolledBack, {Act::kRollBack}},
      {{kHealthy, kWarn, kSuspect, kConfirmed, kRolledBack, kStaleTarget}, Event::kSlow, kDisabled, {Act::kDisable}},
      {{kRedistilling}, Event::kSlow, kRedistilling, {Act::kDisable}},
      {{kDisabled}, Event::kSlow, kDisabled, {Act::kProbe}},
      {{kHealthy, kWarn, kSuspect, kConfirmed, kRedistilling, kRolledBack, kDisabled}, Event::kStale, kStaleTarget, {}},
      {{kCandidate, kCanary}, Event::kStale, kStaleTarget, {Act::kDrop}},
      {{kSuspect}, Event::kConfirmed, kConfirmed, {}},
      {{kSuspect}, Event::kRefuted, kHealthy, {Act::kRestart}},
      {{kDisabled}, Event::kWorth, kHealthy, {Act::kRestart}},
      {{kConfirmed, kStaleTarget, kDisabled}, Event::kGo, kRedistilling, {Act::kRedistil}},
      {{kRedistilling}, Event::kFailed, kConfirmed, {}},
      {{kHealthy, kWarn, kSuspect, kConfirmed, kRedistilling, kRolledBack, kStaleTarget, kDisabled},
       Event::kCandidate,
       kCandidate,
       {Act::kLoad}},
      {{kCandidate, kCanary}, Event::kCandidate, kCandidate, {Act::kDrop, Act::kLoad}},
      {{kCandidate, kCanary}, Event::kWithdrawn, kHealthy, {Act::kDrop}},
      {{kCandidate}, Event::kOnTrial, kCanary, {}},
      {{kCandidate}, Event::kRefused, kRolledBack, {Act::kDrop}},
      {{kCanary}, Event::kGone, kCandidate, {Act::kLoad}},
      {{kCandidate, kCanary}, Event::kBetter, kHealthy, {Act::kPromote}},
      {{kCanary}, Event::kWorse, kRolledBack, {Act::kDrop}},
      {{kCanary}, Event::kExpired, kRolledBack, {Act::kDrop}},
      {{kWarn, kSuspect, kConfirmed, kRedistilling, kRolledBack, kStaleTarget, kDisabled},
       Event::kNewPackage,
       kHealthy,
       {}},
      {{kCandidate, kCanary}, Event::kNewPackage, kHealthy, {Act::kDrop}},
      {{kWarn, kSuspect, kConfirmed, kRedistilling, kRolledBack, kDisabled}, Event::kAcknowledged, kHealthy, {}},
      {{kCandidate, kCanary}, Event::kAcknowledged, kHealthy, {Act::kDrop}},
  };
  return kRows;
}

// Returns an idempotency key: asking again for the same redistillation gives the same key.
std::string redistil_key(const Memory& m, const MachineContext& c) {
  return sha256_hex(c.target + " " + c.draft + " " + c.epoch + " " + std::to_string(m.records) + " " +
                    std::to_string(c.redistillations));
}

void answer_alerts(Memory& m) {
  for (auto& [key, line] : m.alerts) line.clear();
}

// Changes the memory as the event demands. Called before action_of(), which reads the memory.
void remember(Memory& m, const Occurrence& occurrence, const MachineContext& c) {
  switch (occurrence.event) {
    case Event::kCandidate:
      m.candidate = occurrence.candidate;
      m.goal = c.target;
      m.regained.push_back(occurrence.regained);
      if (m.regained.size() > 3) m.regained.erase(m.regained.begin());
      break;
    case Event::kGo:
      m.goal = c.target;
      m.key = redistil_key(m, c);
      break;
    case Event::kRefuted:
      ++m.false_alarms;
      answer_alerts(m);
      break;
    case Event::kBetter:
      m.promoted = m.expected = m.candidate;
      m.former = c.package;
      m.bake_until = c.now + static_cast<int64_t>(c.bake_hours * 3600);
      break;
    case Event::kRefused:
    case Event::kWorse:
    case Event::kExpired:
      m.rejected.insert(m.candidate);
      break;
    case Event::kRelapse:
      m.rejected.insert(m.promoted);
      m.expected = m.former;
      break;
    case Event::kNewPackage:
    case Event::kAcknowledged:
      answer_alerts(m);
      m.bake_until = 0;
      break;
    default:
      break;
  }
}

bool has_lost(Event event) { return event == Event::kWorse || event == Event::kRefused || event == Event::kExpired; }

// Makes the action `act`, for which the transition table asks. Returns nothing if there is nothing to do: there is no
// candidate to drop, speculation is already off or on, or the user has given no command for switching it.
std::optional<Action> action_of(Act act, Event event, Memory& m, const MachineContext& c) {
  switch (act) {
    case Act::kProbe:
      return Probe{.key = "probe " + c.epoch + " " + name(m.stage) + " " + std::to_string(c.now / 86400),
                   .of_speed = m.stage == Stage::kDisabled};
    case Act::kRedistil:
      return Redistil{.key = m.key, .target = c.target, .records = m.records};
    case Act::kLoad:
      return LoadCandidate{.digest = m.candidate};
    case Act::kDrop:
      if (m.candidate.empty()) return std::nullopt;
      return DropCandidate{.digest = m.candidate, .why = event, .has_lost = has_lost(event)};
    case Act::kPromote:
      return Promote{.digest = m.candidate, .why = "canary: " + m.reason};
    case Act::kRollBack:
      return RollBack{.digest = c.package, .former = m.former, .why = m.reason};
    case Act::kDisable:
      if (m.off || !c.can_disable) return std::nullopt;
      m.off = true;
      return Disable{.key = "disable " + c.epoch + " " + std::to_string(c.now)};
    case Act::kEnable:
      if (!std::exchange(m.off, false) || !c.can_enable) return std::nullopt;
      return Enable{};
    case Act::kRestart:
      return RestartDetectors{.why = event};
  }
  return std::nullopt;
}

}  // namespace

const char* name(Stage stage) { return kStageNames.at(static_cast<size_t>(stage)); }
const char* name(Event event) { return kEventNames.at(static_cast<size_t>(event)); }
const char* name(Act act) { return kActNames.at(static_cast<size_t>(act)); }

Stage stage_of(const std::string& text, const std::string& where) {
  const auto* const found = std::find(kStageNames.begin(), kStageNames.end(), text);
  if (found == kStageNames.end())
    throw Error(ErrorKind::kData, where + ": state: expected HEALTHY, WARN, …, found '" + text + "'");
  return static_cast<Stage>(found - kStageNames.begin());
}

std::optional<Move> move_on(Stage from, Event event) {
  for (const Row& row : rows())
    if (row.on == event && std::find(row.from.begin(), row.from.end(), from) != row.from.end())
      return Move{row.to, row.acts};
  return std::nullopt;
}

bool speculates(Stage stage) {
  return stage != Stage::kDisabled && stage != Stage::kStaleTarget && stage != Stage::kRedistilling &&
         stage != Stage::kConfirmed;
}

bool is_calm(Stage stage) { return stage == Stage::kHealthy || stage == Stage::kWarn; }

Json to_json(const Memory& m) {
  return {{"state", name(m.stage)}, {"since", m.since},
          {"reason", m.reason},     {"goal", m.goal},
          {"key", m.key},           {"candidate", m.candidate},
          {"rejected", m.rejected}, {"promoted", m.promoted},
          {"former", m.former},     {"bake_until", m.bake_until},
          {"expected", m.expected}, {"off", m.off},
          {"records", m.records},   {"false_alarms", m.false_alarms},
          {"regained", m.regained}, {"alerts", m.alerts}};
}

namespace {

std::string as_text(const Json& value, const std::string& where) {
  if (!value.is_string()) throw Error(ErrorKind::kData, where + ": expected a string, found " + value.type_name());
  return value.get<std::string>();
}

double as_number(const Json& value, const std::string& where) {
  if (!value.is_number()) throw Error(ErrorKind::kData, where + ": expected a number, found " + value.type_name());
  return value.get<double>();
}

}  // namespace

Memory memory_from_json(const Json& o, const std::string& where) {
  const auto text = [&](const char* key) { return json_string(o, key, "", where, ErrorKind::kData); };
  const auto count = [&](const char* key) {
    return json_int(o, key, {.low = 0, .high = kMaxCount, .fallback = 0}, where, ErrorKind::kData);
  };
  Memory m;
  m.stage = stage_of(json_string(o, "state", where, ErrorKind::kData), where);
  m.since = count("since");
  m.reason = text("reason");
  m.goal = text("goal");
  m.key = text("key");
  m.candidate = text("candidate");
  for (const Json& digest : json_array(o, "rejected", 100000, where, ErrorKind::kData))
    m.rejected.insert(as_text(digest, where + ": rejected"));
  m.promoted = text("promoted");
  m.former = text("former");
  m.bake_until = count("bake_until");
  m.expected = text("expected");
  m.off = json_bool(o, "off", false, where, ErrorKind::kData);
  m.records = count("records");
  m.false_alarms = count("false_alarms");
  for (const Json& change : json_array(o, "regained", 3, where, ErrorKind::kData))
    m.regained.push_back(as_number(change, where + ": regained"));
  for (const auto& [key, line] : json_object(o, "alerts", 1000, where, ErrorKind::kData).items())
    m.alerts[key] = as_text(line, where + ": alerts");
  return m;
}

void disbelieve_future(Memory& m, int64_t now, double bake_hours) {
  m.since = std::min(m.since, now);
  m.bake_until = std::min(m.bake_until, now + static_cast<int64_t>(bake_hours * 3600));
}

std::optional<Event> event_of(const Memory& m, const MachineInput& input, int64_t now) {
  // The loop itself moves the channel to the package `expected`. Until the channel names it, a check's result is no
  // event.
  if (!m.expected.empty() && input.package != m.expected) return std::nullopt;
  const bool at_work = m.stage == Stage::kRedistilling || m.stage == Stage::kCandidate || m.stage == Stage::kCanary;
  if (input.verdict == Verdict::kStaleTarget)
    return at_work && same_target(m.goal, input.target) ? std::nullopt : std::optional(Event::kStale);
  if (input.verdict == Verdict::kDrift) {
    const bool baking = now < m.bake_until && m.promoted == input.package && !m.former.empty() && input.former_fits;
    return baking ? Event::kRelapse : Event::kAlarm;
  }
  if (input.verdict == Verdict::kNotWorthIt) return Event::kSlow;
  if (std::any_of(m.alerts.begin(), m.alerts.end(), [](const auto& alert) { return !alert.second.empty(); }))
    return Event::kAlarm;
  if (input.verdict == Verdict::kWarn) return Event::kAmber;
  // The verdict inconclusive is an event only in SUSPECT and STALE_TARGET: it ends them, because no external alert and
  // no other target is reported any more.
  if (input.verdict == Verdict::kHealthy || m.stage == Stage::kSuspect || m.stage == Stage::kStaleTarget)
    return Event::kQuiet;
  return std::nullopt;
}

std::optional<Transition> advance(const Memory& memory, const Occurrence& occurrence, const MachineContext& context) {
  const Event event = occurrence.event;
  const std::optional<Move> move = move_on(memory.stage, event);
  if (!move) return std::nullopt;
  Transition t{.memory = memory,
               .from = memory.stage,
               .actions = {},
               .is_new_stage = move->to != memory.stage || event == Event::kCandidate};
  Memory& m = t.memory;
  if (t.is_new_stage) {
    m.stage = move->to;
    m.since = context.now;
    m.reason = occurrence.reason;
  }
  const auto want = [&](Act act, Event why) {
    if (std::optional<Action> action = action_of(act, why, m, context)) t.actions.push_back(std::move(*action));
  };
  // A new candidate replaces the previous one, so the previous one is dropped while the memory still names it.
  if (event == Event::kCandidate && m.candidate != occurrence.candidate) want(Act::kDrop, Event::kWithdrawn);
  remember(m, occurrence, context);
  // Turns speculation on first, because a draft can be tried only while speculation is on.
  if (speculates(m.stage)) want(Act::kEnable, event);
  for (const Act act : move->acts)
    if (event != Event::kCandidate || act != Act::kDrop) want(act, event);
  if (m.stage != Stage::kCandidate && m.stage != Stage::kCanary) m.candidate.clear();
  if (event == Event::kRelapse) m.promoted.clear(), m.bake_until = 0;
  return t;
}

void give_up_move(Memory& memory, const std::string& rejected) {
  memory.expected.clear();
  if (!rejected.empty()) memory.rejected.insert(rejected);
}

}  // namespace specdec::monitor
