#include "monitor/report/life.h"

#include <SQLiteCpp/SQLiteCpp.h>

#include "tests/base/page/json_block.h"
#include "tests/monitor/lived.h"

namespace specdec::monitor {
namespace {

using specdec::testing::Scratch;

TEST_F(Lived, ALifeHasAllThatHappened) {
  live_it_all();
  const Life l = life();
  EXPECT_EQ(l.counts.trainings, 2) << way();
  EXPECT_EQ(l.counts.failed_trainings, 1);
  EXPECT_EQ(l.counts.promotions, 2);
  EXPECT_EQ(l.counts.canaries, 3);
  EXPECT_EQ(l.counts.lost_canaries, 1);
  EXPECT_EQ(l.counts.rollbacks, 1);
  EXPECT_EQ(l.counts.target_changes, 1);
  EXPECT_GE(l.counts.alarms, 3) << "drift, the relapse, and the other target";
  EXPECT_EQ(l.end - l.begin, clock.unix_seconds() - l.begin);
  EXPECT_EQ(l.verdict, "healthy");
  EXPECT_EQ(l.left_out, 0);
  for (const auto& [kind, what] :
       std::vector<std::pair<EventKind, std::string>>{{EventKind::kVerdict, "drift"},
                                                      {EventKind::kVerdict, "stale target"},
                                                      {EventKind::kState, "SUSPECT → CONFIRMED (confirmed)"},
                                                      {EventKind::kTraining, "redistillation"},
                                                      {EventKind::kCanary, "CANARY → HEALTHY (better)"},
                                                      {EventKind::kCanary, "CANARY → ROLLED_BACK (worse)"},
                                                      {EventKind::kPromotion, "promotion"},
                                                      {EventKind::kRollback, "roll-back"},
                                                      {EventKind::kPackage, "package "},
                                                      {EventKind::kAction, "probe"}})
    EXPECT_GE(count(l, kind, what), 1) << name(kind) << " " << what;
  ASSERT_EQ(l.trainings.size(), 2u);
  EXPECT_EQ(l.trainings[0].tone, Tone::kBad);
  EXPECT_EQ(l.trainings[1].tone, Tone::kGood);
  EXPECT_EQ(l.canaries[0].what, "better");
  EXPECT_EQ(l.canaries[0].tone, Tone::kGood);
  EXPECT_GE(l.canaries[0].to - l.canaries[0].from, 8 * kStep);
  EXPECT_EQ(l.canaries[1].tone, Tone::kBad);
  ASSERT_EQ(l.targets.size(), 3u) << "the bound target, the other, the bound one again";
  EXPECT_EQ(l.targets[1].what, std::string(12, 'b'));
  EXPECT_EQ(l.targets[1].tone, Tone::kBad);
  EXPECT_EQ(l.packages.size(), 4u) << "the first, its successor, the one that relapsed, and its successor again";
  EXPECT_EQ(l.packages.front().what, package.substr(0, 12));
}

TEST_F(Lived, PeriodsShowTheDrop) {
  live(40);
  const int64_t fell = clock.unix_seconds();
  live(20, 0.80, 0.45);
  const Life l = life();
  ASSERT_GE(l.periods.size(), 50u);
  MeasuredSums before, after;
  double largest = 0;
  int64_t requests = 0;
  for (const Period& p : l.periods) {
    MeasuredSums& sums = p.to <= fell ? before : after;
    sums.n += p.domains.at("code").sums.n;
    sums.acceptance += p.domains.at("code").sums.acceptance;
    largest = std::max(largest, p.log10_e);
    requests += p.requests.n;
    EXPECT_NEAR(p.requests.expected / static_cast<double>(p.requests.n), 0.70, 0.01);
    EXPECT_GT(p.requests.tolerance, 0);
  }
  EXPECT_EQ(requests, 60 * 60) << "each request is in one period";
  EXPECT_NEAR(before.acceptance / static_cast<double>(before.n), 0.60, 0.02);
  EXPECT_NEAR(after.acceptance / static_cast<double>(after.n), 0.45, 0.02);
  EXPECT_GT(largest, l.periods.back().log10_alarm);
  const double difference = l.last.at(0).domains.at("code").log10_e - l.last[0].domains.at("chat").log10_e;
  EXPECT_GT(difference, 5) << "the evidence is about code";
}

// State files of earlier versions have no measurements. For them, the figures come from the verdicts in the history.
TEST_F(Lived, AnOlderStateHasTheFiguresOfItsVerdicts) {
  live(10);
  live(10, 0.80, 0.45);
  const auto has_measurements = [&] {
    return SQLite::Database(options.state.string(), SQLite::OPEN_READONLY).tableExists("measurement");
  };
  SQLite::Database(options.state.string(), SQLite::OPEN_READWRITE).exec("DROP TABLE measurement");
  const Life l = life();
  ASSERT_GE(l.periods.size(), 2u);
  EXPECT_NEAR(l.periods.front().requests.acceptance / static_cast<double>(l.periods.front().requests.n), 0.70, 0.03);
  EXPECT_LT(l.periods.back().requests.acceptance / static_cast<double>(l.periods.back().requests.n), 0.695);
  EXPECT_FALSE(has_measurements()) << "a report changes nothing";
  live(1);
  EXPECT_TRUE(has_measurements()) << "the next check begins to measure";
}

TEST_F(Lived, AYoungLifeSaysWhatIsMissing) {
  {
    const State state(options.state);
  }
  const Life none = life();
  EXPECT_TRUE(none.is_empty());
  EXPECT_EQ(life_summary(none), "no check is recorded");
  options.sources.clear();
  see();
  const Life young = life();
  EXPECT_FALSE(young.is_empty());
  EXPECT_TRUE(young.periods.empty());
  EXPECT_EQ(young.verdict, "inconclusive");
  EXPECT_NE(young.next.find("specdec monitor check"), std::string::npos) << young.next;
}

// A history of a year with a verdict every ten minutes gives a bounded result that includes every alarm.
TEST(Life, ALongLifeIsBounded) {
  const Scratch dir;
  constexpr int64_t kChecks = 52000, kBegin = 1700000000, kAlarmEvery = 1000;
  {
    State state(dir / "s.db");
    Transaction transaction(state);
    for (int64_t i = 0; i < kChecks; ++i) {
      const bool alarm = i % kAlarmEvery == kAlarmEvery - 1;
      const int64_t time = kBegin + i * Measurement::kEvery;
      state.append(HistoryEntry{0,
                                time,
                                alarm   ? "drift"
                                : i % 2 ? "warn"
                                        : "healthy",
                                "p",
                                {{"reason", "because of " + std::to_string(i)}, {"evidence", std::string(500, 'x')}}});
      Measurement m;
      m.epoch = 1;
      m.time = time;
      m.log10_alarm = 6;
      m.requests = {i, 0.7 * static_cast<double>(i), 0.7 * static_cast<double>(i), 0.0};
      m.domains["code"] = {m.requests, 0.5};
      if (i % 6 == 5 || i > kChecks - 2000) state.add(m);
    }
    transaction.commit();
  }
  const Life l = read_life(State(dir / "s.db", State::Open::kExisting), dir / "none");
  EXPECT_EQ(l.counts.alarms, kChecks / kAlarmEvery);
  EXPECT_LE(l.events.size(), Life::kMostEvents);
  EXPECT_EQ(static_cast<int64_t>(l.events.size()) + l.left_out, kChecks);
  EXPECT_EQ(std::count_if(l.events.begin(), l.events.end(), [](const LifeEvent& e) { return e.what == "drift"; }),
            kChecks / kAlarmEvery);
  EXPECT_EQ(l.events.back().reason, "because of " + std::to_string(kChecks - 1));
  EXPECT_LE(l.periods.size(), Life::kMostPeriods + 1);
  EXPECT_GE(l.periods.size(), Life::kMostPeriods / 2);
  const std::string html = render_html(life_page(l, "s.db"));
  EXPECT_LT(html.size(), 1u << 20);
}

// Text on the page is untrusted (domain names come from requests, reasons from servers) and must be escaped.
TEST(Life, HostileTextStaysText) {
  const Scratch dir;
  const std::string hostile = "</script><img src=x onerror=alert(1)>";
  const auto page_with = [&](const std::string& text) {
    const fs::path file = dir / ("s" + std::to_string(text.size()) + ".db");
    {
      State state(file);
      Transaction transaction(state);
      state.append(HistoryEntry{0, 100, "new_package", text, {{"reason", text}}});
      state.append(
          HistoryEntry{0, 200, "drift", text, {{"reason", text}, {"next", text}, {"inputs", {{"target", text}}}}});
      state.append(HistoryEntry{0, 250, text, text, {{"reason", text}}});
      state.append(TransitionEntry{0, 300, text, text, text, text, {{"paired", text}}});
      state.append(TransitionEntry{0, 400, "CANDIDATE", "CANARY", "on_trial", text, nullptr});
      ActionEntry action;
      action.key = "k";
      action.kind = "redistil";
      action.payload = Json::object();
      action.created = 300;
      state.add_action(action);
      state.start_action(1, 300);
      state.record_attempt(1, 1, text);
      Measurement m;
      m.epoch = 1;
      for (int64_t i = 1; i < 4; ++i) {
        m.time = i * 600;
        m.requests = {100 * i, 70.0 * static_cast<double>(i), 70.0 * static_cast<double>(i), 1};
        m.domains[text] = m.domains["other"] = {m.requests, 1};
        m.counters[text] = m.requests;
        state.add(m);
      }
      state.set_value("verdict", "drift");
      state.set_value("package", text);
      transaction.commit();
    }
    specdec::testing::put(file.string() + ".report.json",
                          Json({{"verdict", "drift"}, {"reason", text}, {"next", text}, {"waiting", {text}}}).dump());
    return render_html(life_page(read_life(State(file), report_file(file)), text));
  };
  const auto tags = [](const std::string& html) { return std::count(html.begin(), html.end(), '<'); };
  const std::string calm = page_with("calm"), html = page_with(hostile);
  EXPECT_EQ(tags(html), tags(calm)) << "no text becomes an element, and none ends one";
  EXPECT_EQ(html.find("<img"), std::string::npos);
  EXPECT_NE(html.find("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;"), std::string::npos);
  const Json charts = Json::parse(specdec::testing::json_block(html, "charts"));
  EXPECT_NE(charts.dump().find(hostile), std::string::npos) << "the charts have the name as data";
  EXPECT_NO_THROW(Json::parse(specdec::testing::json_block(html, "result")));
}

// The file of the last result may be malformed, because the database has everything that is needed.
TEST(Life, AResultThatCannotBeReadIsNotRelayed) {
  const Scratch dir;
  {
    State state(dir / "s.db");
    state.append(HistoryEntry{0, 200, "healthy", "p", {{"reason", "from the history"}, {"next", "run this"}}});
    state.set_value("verdict", "healthy");
  }
  for (const char* text :
       {"", "no json", "[1]", "{\"verdict\":7}", R"({"verdict":"healthy","reason":7,"waiting":[[1]]})",
        R"({"verdict":"drift","reason":"of another check","next":"rm -rf"})"}) {
    specdec::testing::put(dir / "r.json", text);
    const Life l = read_life(State(dir / "s.db"), dir / "r.json");
    EXPECT_EQ(l.verdict, "healthy");
    EXPECT_NE(l.reason, "of another check");
    EXPECT_NE(l.next, "rm -rf");
  }
}

}  // namespace
}  // namespace specdec::monitor
