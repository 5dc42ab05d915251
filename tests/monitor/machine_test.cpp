#include "monitor/machine/machine.h"

#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>

#include "base/philox.h"
#include "tests/base/scratch.h"
#include "tests/source_folder.h"

namespace specdec::monitor {
namespace {

struct Documented {
  std::string to, acts;
};
// Returns the transition table of docs/monitor.md as a map: (state, event) → next state and actions.
std::map<std::pair<std::string, std::string>, Documented> documented() {
  std::map<std::pair<std::string, std::string>, Documented> table;
  std::istringstream page(testing::get(source_folder() + "/docs/monitor.md"));
  const auto cells = [](const std::string& line) {
    std::vector<std::string> out;
    std::istringstream row(line.substr(1));
    for (std::string cell; std::getline(row, cell, '|');) {
      const size_t a = cell.find_first_not_of(' '), b = cell.find_last_not_of(' ');
      out.push_back(a == std::string::npos ? "" : cell.substr(a, b - a + 1));
    }
    return out;
  };
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.rfind("| from | event | to | does |", 0) == 0)
      inside = true;
    else if (inside && line.rfind("|", 0) != 0)
      inside = false;
    else if (inside && line.rfind("|--", 0) != 0) {
      const std::vector<std::string> c = cells(line);
      std::istringstream states(c.at(0));
      for (std::string state; std::getline(states, state, ',');) {
        state.erase(0, state.find_first_not_of(' '));
        EXPECT_TRUE(table.emplace(std::pair{state, c.at(1)}, Documented{c.at(2), c.at(3)}).second)
            << "twice: " << state << " " << c.at(1);
      }
    }
  }
  return table;
}

std::string acts_of(const Move& move) {
  std::string text;
  for (const Act act : move.acts) text += (text.empty() ? "" : ", ") + std::string(name(act));
  return text;
}

TEST(Machine, IsTheTableOfItsPage) {
  auto table = documented();
  ASSERT_GT(table.size(), 70u) << "docs/monitor.md: the table of States was not found";
  for (int s = 0; s < kStages; ++s)
    for (int e = 0; e < kEvents; ++e) {
      const auto stage = static_cast<Stage>(s);
      const auto event = static_cast<Event>(e);
      const std::optional<Move> move = move_on(stage, event);
      const auto row = table.extract({name(stage), name(event)});
      ASSERT_EQ(move.has_value(), !row.empty()) << name(stage) << " × " << name(event);
      if (!move) continue;
      EXPECT_EQ(name(move->to), row.mapped().to) << name(stage) << " × " << name(event);
      EXPECT_EQ(acts_of(*move), row.mapped().acts) << name(stage) << " × " << name(event);
    }
  EXPECT_TRUE(table.empty()) << "unknown state or event in docs/monitor.md: " << table.begin()->first.first << " × "
                             << table.begin()->first.second;
}

// Sends random events to the state machine and checks the properties that must hold after any sequence of events.
TEST(Machine, NoWalkDoesWhatMustNotBeDone) {
  PhiloxStream random(7, 1);
  Stage stage = Stage::kHealthy;
  bool trained = false, loaded = false, tried = false, off = false;
  std::set<Stage> seen;
  for (int i = 0; i < 100000; ++i) {
    const auto event = static_cast<Event>(random.below(kEvents));
    const std::optional<Move> move = move_on(stage, event);
    if (!move) continue;
    const auto does = [&](Act act) { return std::count(move->acts.begin(), move->acts.end(), act) == 1; };
    if (does(Act::kRedistil)) {
      EXPECT_TRUE(stage == Stage::kConfirmed || stage == Stage::kStaleTarget || stage == Stage::kDisabled)
          << name(stage);
      EXPECT_EQ(event, Event::kGo);
      EXPECT_EQ(move->to, Stage::kRedistilling);
      trained = true;
    }
    if (move->to == Stage::kConfirmed)
      EXPECT_TRUE(stage == Stage::kSuspect || stage == Stage::kRedistilling)
          << "an alarm is confirmed before money is spent";
    if (does(Act::kPromote)) EXPECT_TRUE(loaded && tried && event == Event::kBetter) << "promoted without a trial";
    if (move->to == Stage::kCanary) EXPECT_TRUE(loaded);
    if (does(Act::kLoad)) loaded = true, tried = true;
    if (loaded && move->to != Stage::kCandidate && move->to != Stage::kCanary && !does(Act::kPromote))
      EXPECT_TRUE(does(Act::kDrop)) << "left on trial: " << name(stage) << " × " << name(event);
    if (move->to != Stage::kCandidate && move->to != Stage::kCanary) loaded = tried = false;
    if (event == Event::kStale) EXPECT_EQ(move->to, Stage::kStaleTarget);
    if (does(Act::kDisable)) {
      off = true;
      EXPECT_FALSE(speculates(move->to));
    }
    if (speculates(move->to)) off = false;
    if (move->to == Stage::kHealthy || move->to == Stage::kCandidate)
      EXPECT_FALSE(off) << "speculation stays off after " << name(event);
    stage = move->to;
    seen.insert(stage);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kStages)) << "every state is reached";
  EXPECT_TRUE(trained);
}

TEST(Machine, EventsOfALook) {
  Memory m;
  const auto event = [&](Verdict verdict, const std::string& package = "p", int64_t now = 100) {
    return event_of(m, {verdict, package, "t2", true}, now);
  };
  EXPECT_EQ(event(Verdict::kHealthy), Event::kQuiet);
  EXPECT_EQ(event(Verdict::kWarn), Event::kAmber);
  EXPECT_EQ(event(Verdict::kInconclusive), std::nullopt);
  EXPECT_EQ(event(Verdict::kDrift), Event::kAlarm);
  EXPECT_EQ(event(Verdict::kNotWorthIt), Event::kSlow);
  EXPECT_EQ(event(Verdict::kStaleTarget), Event::kStale);
  m.stage = Stage::kStaleTarget;
  EXPECT_EQ(event(Verdict::kInconclusive), Event::kQuiet) << "the target is the old one again";
  m.stage = Stage::kHealthy;
  m.goal = "t2";
  EXPECT_EQ(event(Verdict::kStaleTarget), Event::kStale) << "nothing is done about it yet";
  for (const Stage stage : {Stage::kRedistilling, Stage::kCandidate, Stage::kCanary}) {
    m.stage = stage;
    m.goal = "t2";
    EXPECT_EQ(event(Verdict::kStaleTarget), std::nullopt) << "what the work is for";
    m.goal = "t1";
    EXPECT_EQ(event(Verdict::kStaleTarget), Event::kStale) << "it changed once more";
  }
  m = {};
  m.promoted = "p";
  m.former = "o";
  m.bake_until = 101;
  EXPECT_EQ(event(Verdict::kDrift), Event::kRelapse);
  EXPECT_EQ(event(Verdict::kDrift, "p", 101), Event::kAlarm) << "baked";
  EXPECT_EQ(event(Verdict::kDrift, "q"), Event::kAlarm) << "another package";
  EXPECT_EQ(event_of(m, {Verdict::kDrift, "p", "t2", false}, 100), Event::kAlarm)
      << "the former package is of another target";
  m.expected = "q";
  EXPECT_EQ(event(Verdict::kDrift), std::nullopt) << "a move of the channel is under way";
  m = {};
  m.alerts = {{"g 1", ""}};
  EXPECT_EQ(event(Verdict::kHealthy), Event::kQuiet) << "answered";
  m.alerts["g 2"] = "slow tokens";
  EXPECT_EQ(event(Verdict::kInconclusive), Event::kAlarm);
}

// Returns a memory in the given stage. Every field is set that an action of the transition table needs.
Memory memory_in(Stage stage) {
  Memory m;
  m.stage = stage;
  m.since = 100;
  m.records = 500;
  if (stage == Stage::kCandidate || stage == Stage::kCanary) m.candidate = "tried";
  m.promoted = "promoted";
  m.former = "former";
  m.bake_until = 2000;
  m.alerts = {{"g 1", "slow tokens"}};
  return m;
}

MachineContext facts_of_a_check() {
  MachineContext c;
  c.now = 86400 * 3 + 7;
  c.package = "package";
  c.draft = "draft";
  c.target = "target";
  c.epoch = "4";
  c.redistillations = 2;
  c.bake_hours = 2;
  c.can_disable = c.can_enable = true;
  return c;
}

Occurrence occurrence_of(Event event) {
  Occurrence o{event, "because"};
  if (event == Event::kCandidate) o.candidate = "new", o.regained = 0.25;
  return o;
}

std::string acts_of(const Transition& transition) {
  std::string text;
  for (const Action& action : transition.actions)
    text +=
        (text.empty() ? "" : ", ") + std::string(std::visit([](const auto& kind) { return name(kind.kAct); }, action));
  return text;
}

template <class Kind>
const Kind& only(const std::optional<Transition>& transition) {
  const Kind* found = nullptr;
  for (const Action& action : transition.value().actions)
    if (const Kind* kind = std::get_if<Kind>(&action)) {
      EXPECT_EQ(found, nullptr) << "twice";
      found = kind;
    }
  return found ? *found : throw std::runtime_error("no such action: " + acts_of(*transition));
}

TEST(Machine, EveryRowReturnsItsStateAndItsActions) {
  auto table = documented();
  ASSERT_GT(table.size(), 70u) << "docs/monitor.md: the table of States was not found";
  for (int s = 0; s < kStages; ++s)
    for (int e = 0; e < kEvents; ++e) {
      const auto stage = static_cast<Stage>(s);
      const auto event = static_cast<Event>(e);
      SCOPED_TRACE(std::string(name(stage)) + " × " + name(event));
      const Memory before = memory_in(stage);
      const std::optional<Transition> t = advance(before, occurrence_of(event), facts_of_a_check());
      const auto row = table.extract({name(stage), name(event)});
      ASSERT_EQ(t.has_value(), !row.empty());
      if (!t) continue;
      EXPECT_EQ(name(t->memory.stage), row.mapped().to);
      EXPECT_EQ(acts_of(*t), row.mapped().acts);
      EXPECT_EQ(name(t->from), std::string(name(stage)));
      EXPECT_EQ(t->is_new_stage, t->memory.stage != stage || event == Event::kCandidate);
      EXPECT_EQ(t->memory.since, t->is_new_stage ? facts_of_a_check().now : before.since);
      EXPECT_EQ(t->memory.reason, t->is_new_stage ? "because" : "");
      const bool is_trying = t->memory.stage == Stage::kCandidate || t->memory.stage == Stage::kCanary;
      EXPECT_EQ(t->memory.candidate.empty(), !is_trying);
    }
}

TEST(Machine, SpeculationIsTurnedOnOnTheWayToWhereItIsWanted) {
  for (int s = 0; s < kStages; ++s)
    for (int e = 0; e < kEvents; ++e) {
      Memory m = memory_in(static_cast<Stage>(s));
      m.off = true;
      const Occurrence occurrence = occurrence_of(static_cast<Event>(e));
      MachineContext c = facts_of_a_check();
      const std::optional<Transition> t = advance(m, occurrence, c);
      if (!t) continue;
      SCOPED_TRACE(std::string(name(m.stage)) + " × " + name(occurrence.event));
      const std::string acts = acts_of(*t);
      EXPECT_EQ(acts.find("enable") != std::string::npos, speculates(t->memory.stage)) << acts;
      EXPECT_EQ(acts.find("disable"), std::string::npos) << "it is off already";
      EXPECT_EQ(t->memory.off, !speculates(t->memory.stage));
      c.can_enable = false;
      EXPECT_EQ(acts_of(advance(m, occurrence, c).value()).find("enable"), std::string::npos) << "no command is given";
    }
  EXPECT_EQ(acts_of(advance(memory_in(Stage::kCanary), occurrence_of(Event::kGone), facts_of_a_check()).value()),
            "load");
  Memory off = memory_in(Stage::kDisabled);
  off.off = true;
  EXPECT_EQ(acts_of(advance(off, occurrence_of(Event::kCandidate), facts_of_a_check()).value()), "enable, load")
      << "a draft is tried where it may draft";
}

TEST(Machine, SpeculationIsTurnedOffOnceAndOnlyByACommand) {
  MachineContext c = facts_of_a_check();
  const auto slow = advance(memory_in(Stage::kHealthy), occurrence_of(Event::kSlow), c);
  EXPECT_EQ(only<Disable>(slow).key, "disable 4 259207");
  EXPECT_TRUE(slow->memory.off);
  c.can_disable = false;
  const auto left_on = advance(memory_in(Stage::kHealthy), occurrence_of(Event::kSlow), c);
  EXPECT_EQ(acts_of(*left_on), "");
  EXPECT_FALSE(left_on->memory.off) << "nothing turned it off";
}

TEST(Machine, AProbeIsAskedOncePerDay) {
  MachineContext c = facts_of_a_check();
  const auto probe = [&](Stage stage, Event event) {
    return only<Probe>(advance(memory_in(stage), occurrence_of(event), c));
  };
  EXPECT_EQ(probe(Stage::kHealthy, Event::kAlarm).key, "probe 4 SUSPECT 3");
  EXPECT_FALSE(probe(Stage::kHealthy, Event::kAlarm).of_speed);
  EXPECT_EQ(probe(Stage::kDisabled, Event::kSlow).key, "probe 4 DISABLED 3");
  EXPECT_TRUE(probe(Stage::kDisabled, Event::kSlow).of_speed);
  c.now += 86400 - 8;
  EXPECT_EQ(probe(Stage::kHealthy, Event::kAlarm).key, "probe 4 SUSPECT 3");
  c.now += 1;
  EXPECT_EQ(probe(Stage::kHealthy, Event::kAlarm).key, "probe 4 SUSPECT 4");
}

TEST(Machine, ARedistillationHasAKeyOfItsFacts) {
  const Memory confirmed = memory_in(Stage::kConfirmed);
  const auto key = [&](const std::function<void(Memory&, MachineContext&)>& change) {
    Memory m = confirmed;
    MachineContext c = facts_of_a_check();
    change(m, c);
    const auto go = advance(m, occurrence_of(Event::kGo), c);
    EXPECT_EQ(only<Redistil>(go).key, go->memory.key);
    EXPECT_EQ(only<Redistil>(go).target, c.target);
    EXPECT_EQ(only<Redistil>(go).records, m.records);
    EXPECT_EQ(go->memory.goal, c.target);
    return go->memory.key;
  };
  const std::string same = key([](Memory&, MachineContext&) {});
  EXPECT_EQ(same, "ec7c575dc3deedc002dc04104964c4ffcb06075aebb1f20b4c4eabad58e25689");
  EXPECT_EQ(key([](Memory&, MachineContext& c) { c.now += 99; }), same) << "the time does not make another one";
  std::set<std::string> keys = {same};
  keys.insert(key([](Memory&, MachineContext& c) { c.target = "u"; }));
  keys.insert(key([](Memory&, MachineContext& c) { c.draft = "e"; }));
  keys.insert(key([](Memory&, MachineContext& c) { c.epoch = "5"; }));
  keys.insert(key([](Memory&, MachineContext& c) { c.redistillations = 3; }));
  keys.insert(key([](Memory& m, MachineContext&) { m.records = 501; }));
  EXPECT_EQ(keys.size(), 6u);
}

TEST(Machine, ACandidateReplacesTheOneThatIsTried) {
  const auto first = advance(memory_in(Stage::kHealthy), occurrence_of(Event::kCandidate), facts_of_a_check());
  EXPECT_EQ(acts_of(*first), "load") << "there is none to drop";
  EXPECT_EQ(only<LoadCandidate>(first).digest, "new");
  EXPECT_EQ(first->memory.candidate, "new");
  EXPECT_EQ(first->memory.goal, "target");
  const auto next = advance(memory_in(Stage::kCandidate), occurrence_of(Event::kCandidate), facts_of_a_check());
  EXPECT_EQ(only<DropCandidate>(next).digest, "tried");
  EXPECT_EQ(only<DropCandidate>(next).why, Event::kWithdrawn);
  EXPECT_FALSE(only<DropCandidate>(next).has_lost) << "its channel names the new one already";
  EXPECT_EQ(only<LoadCandidate>(next).digest, "new");
  EXPECT_TRUE(next->is_new_stage);
  Memory m = memory_in(Stage::kHealthy);
  m.regained = {0.1, 0.2, 0.3};
  EXPECT_EQ(advance(m, occurrence_of(Event::kCandidate), facts_of_a_check())->memory.regained,
            (std::vector<double>{0.2, 0.3, 0.25}));
}

TEST(Machine, APromotionIsRememberedUntilItIsBaked) {
  const MachineContext c = facts_of_a_check();
  const auto better = advance(memory_in(Stage::kCanary), occurrence_of(Event::kBetter), c);
  EXPECT_EQ(only<Promote>(better).digest, "tried");
  EXPECT_EQ(only<Promote>(better).why, "canary: because");
  EXPECT_EQ(better->memory.promoted, "tried");
  EXPECT_EQ(better->memory.expected, "tried");
  EXPECT_EQ(better->memory.former, "package");
  EXPECT_EQ(better->memory.bake_until, c.now + 7200);
  const auto relapse = advance(memory_in(Stage::kWarn), occurrence_of(Event::kRelapse), c);
  EXPECT_EQ(only<RollBack>(relapse).digest, "package");
  EXPECT_EQ(only<RollBack>(relapse).former, "former");
  EXPECT_EQ(only<RollBack>(relapse).why, "because");
  EXPECT_EQ(relapse->memory.expected, "former");
  EXPECT_EQ(relapse->memory.rejected, (std::set<std::string>{"promoted"}));
  EXPECT_EQ(relapse->memory.promoted, "");
  EXPECT_EQ(relapse->memory.bake_until, 0);
}

TEST(Machine, WhatLosesIsRejectedForEver) {
  const auto lost = [](Stage stage, Event event) {
    const auto t = advance(memory_in(stage), occurrence_of(event), facts_of_a_check());
    const auto& drop = only<DropCandidate>(t);
    EXPECT_EQ(drop.digest, "tried");
    EXPECT_EQ(drop.why, event);
    EXPECT_EQ(drop.has_lost, t->memory.rejected.contains("tried"));
    return drop.has_lost;
  };
  EXPECT_TRUE(lost(Stage::kCandidate, Event::kRefused));
  EXPECT_TRUE(lost(Stage::kCanary, Event::kWorse));
  EXPECT_TRUE(lost(Stage::kCanary, Event::kExpired));
  EXPECT_FALSE(lost(Stage::kCanary, Event::kStale));
  EXPECT_FALSE(lost(Stage::kCanary, Event::kWithdrawn));
  EXPECT_FALSE(lost(Stage::kCanary, Event::kNewPackage));
}

TEST(Machine, AlertsAreAnsweredByWhatRefutesThem) {
  const auto alert = [](Stage stage, Event event) {
    return advance(memory_in(stage), occurrence_of(event), facts_of_a_check())->memory.alerts.at("g 1");
  };
  EXPECT_EQ(alert(Stage::kSuspect, Event::kConfirmed), "slow tokens");
  EXPECT_EQ(alert(Stage::kSuspect, Event::kRefuted), "");
  EXPECT_EQ(alert(Stage::kSuspect, Event::kNewPackage), "");
  EXPECT_EQ(alert(Stage::kSuspect, Event::kAcknowledged), "");
  const auto refuted = advance(memory_in(Stage::kSuspect), occurrence_of(Event::kRefuted), facts_of_a_check());
  EXPECT_EQ(refuted->memory.false_alarms, 1);
  EXPECT_EQ(only<RestartDetectors>(refuted).why, Event::kRefuted);
}

TEST(Machine, AMoveThatIsImpossibleIsNotExpected) {
  Memory m;
  m.expected = "new";
  give_up_move(m, "new");
  EXPECT_EQ(m.expected, "");
  EXPECT_EQ(m.rejected, (std::set<std::string>{"new"}));
  m.expected = "former";
  give_up_move(m, "");
  EXPECT_EQ(m.expected, "");
  EXPECT_EQ(m.rejected.size(), 1u);
}

TEST(Machine, MemoryComesBackAsItWas) {
  Memory m;
  m.stage = Stage::kCanary;
  m.since = 5;
  m.reason = "r";
  m.goal = "g";
  m.key = "k";
  m.candidate = "c";
  m.rejected = {"x", "y"};
  m.promoted = "p";
  m.former = "f";
  m.bake_until = 9;
  m.expected = "e";
  m.off = true;
  m.records = 7;
  m.false_alarms = 2;
  m.regained = {-0.01, 0.25};
  m.alerts = {{"a", "b"}};
  EXPECT_EQ(to_json(memory_from_json(to_json(m), "m")), to_json(m));
  Json broken = to_json(m);
  broken["state"] = "SLEEPING";
  testing::expect_error(ErrorKind::kData, {"m: state", "SLEEPING"}, [&] { memory_from_json(broken, "m"); });
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"rejected", Json::array({1})}, {"regained", Json::array({"x"})}, {"alerts", {{"a", 1}}}}) {
    broken = to_json(m);
    broken[key] = value;
    testing::expect_error(ErrorKind::kData, {"m: " + key}, [&] { memory_from_json(broken, "m"); });
  }
}

}  // namespace
}  // namespace specdec::monitor
