#include "monitor/machine.h"

#include <gtest/gtest.h>

#include <sstream>

#include "base/philox.h"
#include "tests/base/scratch.h"

namespace specdec::monitor {
namespace {

struct Documented {
  std::string to, acts;
};
// (state, event) → what docs/monitor.md says of it.
std::map<std::pair<std::string, std::string>, Documented> documented() {
  std::map<std::pair<std::string, std::string>, Documented> table;
  std::istringstream page(testing::get(std::string(SPECDEC_SOURCE_DIR) + "/docs/monitor.md"));
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

// What must hold on every way through the machine, whatever the world does.
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
  const auto event = [&](const std::string& verdict, const std::string& package = "p", int64_t now = 100) {
    return event_of(m, {verdict, package, "t2", true}, now);
  };
  EXPECT_EQ(event("healthy"), Event::kQuiet);
  EXPECT_EQ(event("warn"), Event::kAmber);
  EXPECT_EQ(event("inconclusive"), std::nullopt);
  EXPECT_EQ(event("drift"), Event::kAlarm);
  EXPECT_EQ(event("not_worth_it"), Event::kSlow);
  EXPECT_EQ(event("stale_target"), Event::kStale);
  m.stage = Stage::kStaleTarget;
  EXPECT_EQ(event("inconclusive"), Event::kQuiet) << "the target is the old one again";
  m.stage = Stage::kHealthy;
  m.goal = "t2";
  EXPECT_EQ(event("stale_target"), Event::kStale) << "nothing is done about it yet";
  for (const Stage stage : {Stage::kRedistilling, Stage::kCandidate, Stage::kCanary}) {
    m.stage = stage;
    m.goal = "t2";
    EXPECT_EQ(event("stale_target"), std::nullopt) << "what the work is for";
    m.goal = "t1";
    EXPECT_EQ(event("stale_target"), Event::kStale) << "it changed once more";
  }
  m = {};
  m.promoted = "p";
  m.former = "o";
  m.bake_until = 101;
  EXPECT_EQ(event("drift"), Event::kRelapse);
  EXPECT_EQ(event("drift", "p", 101), Event::kAlarm) << "baked";
  EXPECT_EQ(event("drift", "q"), Event::kAlarm) << "another package";
  EXPECT_EQ(event_of(m, {"drift", "p", "t2", false}, 100), Event::kAlarm) << "the former package is of another target";
  m.expected = "q";
  EXPECT_EQ(event("drift"), std::nullopt) << "a move of the channel is under way";
  m = {};
  m.alerts = {{"g 1", ""}};
  EXPECT_EQ(event("healthy"), Event::kQuiet) << "answered";
  m.alerts["g 2"] = "slow tokens";
  EXPECT_EQ(event("inconclusive"), Event::kAlarm);
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
}

}  // namespace
}  // namespace specdec::monitor
