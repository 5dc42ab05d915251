#include "monitor/state/state.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>

#include "monitor/state/transaction.h"
#include "tests/base/scratch.h"

namespace specdec::monitor {
namespace {

using testing::expect_error;
using testing::get;
using testing::put;
using testing::Scratch;

TEST(State, RemembersAcrossProcesses) {
  Scratch dir;
  const fs::path file = dir / "a state.db";
  {
    State state(file);
    EXPECT_EQ(state.value("detector"), "");
    Transaction transaction(state);
    state.set_value("detector", "x\0y");
    state.set_value("detector", "two");
    state.set_position("1:2", {77, "abc"});
    state.set_counters(
        "u", parse_exposition("vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"1\"} 2\n", "page"));
    state.append(HistoryEntry{0, 5, "healthy", "p", {{"reason", "a"}}});
    state.append(HistoryEntry{0, 6, "drift", "p", {{"reason", "b"}}});
    transaction.commit();
  }
  State state(file, State::Open::kExisting);
  EXPECT_EQ(state.value("detector"), "two");
  EXPECT_EQ(state.position("1:2").offset, 77u);
  EXPECT_EQ(state.position("1:2").head, "abc");
  EXPECT_EQ(state.position("9:9").offset, 0u);
  EXPECT_EQ(state.counters("u")->accepted_at, (std::vector<double>{0, 2}));
  EXPECT_FALSE(state.counters("v"));
  const auto all = state.history(INT64_MAX), newest = state.history(1);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].verdict, "healthy");
  EXPECT_EQ(all[1].evidence["reason"], "b");
  ASSERT_EQ(newest.size(), 1u);
  EXPECT_EQ(newest[0].verdict, "drift");
}

TEST(State, NothingOfAnUncommittedLookStays) {
  Scratch dir;
  {
    State state(dir / "s.db");
    Transaction transaction(state);
    state.set_value("k", "v");
    state.append(HistoryEntry{0, 1, "drift", "p", Json::object()});
  }
  State state(dir / "s.db");
  EXPECT_EQ(state.value("k"), "");
  EXPECT_TRUE(state.history(10).empty());
}

TEST(State, IsDurableAndAppendOnly) {
  Scratch dir;
  {
    State(dir / "s.db").append(HistoryEntry{0, 1, "healthy", "p", Json::object()});
  }
  SQLite::Database db((dir / "s.db").string(), SQLite::OPEN_READWRITE);
  EXPECT_THROW(db.exec("DELETE FROM history"), SQLite::Exception);
  EXPECT_THROW(db.exec("UPDATE history SET verdict = 'x'"), SQLite::Exception);
  EXPECT_EQ(db.execAndGet("PRAGMA journal_mode").getString(), "delete");
  EXPECT_EQ(db.execAndGet("PRAGMA application_id").getInt(), 0x53504443);
  EXPECT_EQ(db.execAndGet("PRAGMA user_version").getInt(), 3);
}

TEST(State, ActionsAreWrittenDownOnceAndCounted) {
  Scratch dir;
  State state(dir / "s.db");
  ActionEntry a;
  a.key = "k";
  a.kind = "probe";
  a.payload = {{"argv", {"x"}}};
  a.created = 10;
  EXPECT_TRUE(state.add_action(a));
  EXPECT_FALSE(state.add_action(a)) << "one a key";
  a.key = "l";
  EXPECT_TRUE(state.add_action(a));
  ASSERT_EQ(state.pending_actions().size(), 2u);
  const int64_t id = state.action("k")->id;
  state.start_action(id, 11);
  EXPECT_EQ(state.action("k")->started, 11);
  state.record_attempt(id, 75, "busy");
  EXPECT_EQ(state.action("k")->started, 0);
  EXPECT_EQ(state.action("k")->code, 75);
  state.start_action(id, 12);
  state.record_attempt(id, 0, "done");
  state.end_action(id, 13);
  EXPECT_EQ(state.action("k")->attempts, 2);
  EXPECT_EQ(state.action("k")->outcome, "done");
  EXPECT_EQ(state.pending_actions().size(), 1u);
  EXPECT_EQ(state.actions_of("probe", 10).size(), 2u);
  EXPECT_EQ(state.actions_of("probe", 11).size(), 0u);
  EXPECT_FALSE(state.action("m"));
  SQLite::Database db((dir / "s.db").string(), SQLite::OPEN_READWRITE);
  EXPECT_THROW(db.exec("DELETE FROM action"), SQLite::Exception);
  state.append(TransitionEntry{0, 1, "A", "B", "e", "r", {{"n", 1}}});
  EXPECT_EQ(state.transitions(9).at(0).evidence["n"], 1);
  EXPECT_THROW(db.exec("UPDATE transition SET reason = 'x'"), SQLite::Exception);
  EXPECT_THROW(db.exec("DELETE FROM transition"), SQLite::Exception);
}

// Makes a state file of version 1, without the tables of later versions. Expects a copy of the file, and an upgrade of
// the file itself.
TEST(State, AnOlderVersionIsCopiedAndBroughtForward) {
  Scratch dir;
  {
    State state(dir / "s.db");
    state.set_value("trigger p 1 drift", "0");
    state.set_value("trigger p 2 drift", "1");
    state.append(
        HistoryEntry{0, 5, "drift", "p", {{"reason", "http://me:hunter2@host/metrics?token=s3cret: dropped"}}});
    state.append(HistoryEntry{0, 6, "trigger", "p", {{"command", "curl -H hunter2"}, {"exit_code", 0}}});
  }
  SQLite::Database((dir / "s.db").string(), SQLite::OPEN_READWRITE)
      .exec("DROP TABLE action; DROP TABLE transition; PRAGMA user_version = 1");
  put(dir / "s.db.v1", "cut short");
  State state(dir / "s.db", State::Open::kExisting);
  EXPECT_EQ(state.history(9).size(), 2u);
  EXPECT_TRUE(state.action("trigger p 1 drift")->ended) << "what had run does not run again";
  EXPECT_FALSE(state.action("trigger p 2 drift"));
  EXPECT_EQ(SQLite::Database((dir / "s.db.v1").string()).execAndGet("PRAGMA user_version").getInt(), 1);
  EXPECT_EQ(SQLite::Database((dir / "s.db.v1").string()).execAndGet("SELECT count(*) FROM history").getInt(), 2);
  EXPECT_EQ(SQLite::Database((dir / "s.db").string()).execAndGet("PRAGMA user_version").getInt(), 3);
  for (const char* file : {"s.db", "s.db.v1"}) {
    const std::string bytes = get(dir / file);
    for (const char* secret : {"hunter2", "s3cret"})
      EXPECT_EQ(bytes.find(secret), std::string::npos) << file << ": " << secret;
    SQLite::Database db((dir / file).string(), SQLite::OPEN_READWRITE);
    EXPECT_THROW(db.exec("UPDATE history SET verdict = 'x'"), SQLite::Exception) << file << ": still append-only";
  }
}

TEST(State, AnotherMonitorAtWorkMeansTryAgain) {
  Scratch dir;
  State mine(dir / "s.db");
  Transaction transaction(mine);
  // Opens the state as a second monitor would, in another process and without the usual wait of 5 s. It must exit with
  // 75.
  const int code = testing::in_child(nullptr, "", [&] {
    State other(dir / "s.db", State::Open::kExisting, 0);
    Transaction begun(other);
  });
  EXPECT_EQ(code, 75);
  transaction.commit();
}

TEST(State, OtherFilesAreRefusedAndLeftAlone) {
  Scratch dir;
  put(dir / "text.db", std::string(5000, 'x'));
  fs::permissions(dir / "text.db", fs::perms(0644));
  expect_error(ErrorKind::kData, {"text.db", "not a monitor state"}, [&] { State(dir / "text.db"); });
  EXPECT_EQ(get(dir / "text.db"), std::string(5000, 'x'));
  EXPECT_EQ(fs::status(dir / "text.db").permissions(), fs::perms(0644)) << "who else may read it is not ours to say";
  SQLite::Database((dir / "other.db").string(), SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
      .exec("CREATE TABLE t (x)");
  expect_error(ErrorKind::kData, {"other.db", "another program"}, [&] { State(dir / "other.db"); });
  {
    State newer(dir / "newer.db");
  }
  SQLite::Database((dir / "newer.db").string(), SQLite::OPEN_READWRITE).exec("PRAGMA user_version = 4");
  expect_error(ErrorKind::kData, {"newer.db", "version 4"}, [&] { State(dir / "newer.db"); });
  expect_error(ErrorKind::kData, {"not a regular file"}, [&] { State(dir.root()); });
  expect_error(ErrorKind::kIo, {"nowhere"}, [&] { State(dir / "nowhere/s.db"); });
  for (const bool empty : {false, true}) {
    if (empty) put(dir / "absent.db", "");
    expect_error(ErrorKind::kData, {"absent.db", "no monitor state"},
                 [&] { State(dir / "absent.db", State::Open::kExisting); });
  }
}

// Triggers and views run when a table is used. A file that has any but the monitor's own is refused.
TEST(State, ForeignTriggersAndViewsAreRefused) {
  for (const std::string sql :
       {"CREATE TRIGGER t AFTER INSERT ON value BEGIN DELETE FROM source; END",
        "DROP TRIGGER action_keeps_all; CREATE TRIGGER action_keeps_all AFTER INSERT ON value BEGIN DELETE FROM "
        "source; END",
        "ALTER TABLE value RENAME TO was; CREATE VIEW value AS SELECT * FROM was",
        "CREATE VIEW measurement AS SELECT 1 AS slot, 0 AS epoch, 1 AS time, '{}' AS figures"}) {
    Scratch dir;
    {
      State(dir / "s.db").set_value("k", "v");
      State(dir / "s.db").set_position("1:2", {77, "abc"});
    }
    SQLite::Database((dir / "s.db").string(), SQLite::OPEN_READWRITE).exec(sql);
    const std::string before = get(dir / "s.db");
    expect_error(ErrorKind::kData, {"s.db", "trigger or view", "move it away"}, [&] { State(dir / "s.db"); });
    EXPECT_EQ(get(dir / "s.db"), before);
  }
}

TEST(State, TablesOfAnotherShapeAreDamage) {
  const auto is_refused = [](const std::string& sql, const std::function<void(State&)>& use) {
    Scratch dir;
    {
      State state(dir / "s.db");
    }
    SQLite::Database((dir / "s.db").string(), SQLite::OPEN_READWRITE).exec(sql);
    expect_error(ErrorKind::kData, {"s.db"}, [&] {
      State state(dir / "s.db");
      use(state);
    });
  };
  is_refused("PRAGMA user_version = 1", [](State&) {});
  is_refused("DROP TABLE value", [](State& s) { s.value("k"); });
  is_refused("DROP TABLE value; CREATE TABLE value (key, other)", [](State& s) { s.set_value("k", "v"); });
  is_refused("DROP TABLE source", [](State& s) { s.set_position("1:2", {77, "abc"}); });
  for (const char* epoch : {"zzz", "99999999999999999999", " ", "-1", "1x"})
    is_refused("INSERT INTO value VALUES ('epoch', '" + std::string(epoch) + "')", [](State& s) { s.epoch(); });
}

TEST(State, DamageIsAnError) {
  Scratch dir;
  {
    State state(dir / "s.db");
    Transaction transaction(state);
    for (int i = 0; i < 300; ++i) state.append(HistoryEntry{0, i, "healthy", "p", {{"reason", std::string(100, 'r')}}});
    transaction.commit();
  }
  std::string bytes = get(dir / "s.db");
  for (size_t i = 5000; i < bytes.size(); i += 3) bytes[i] = static_cast<char>(i);
  put(dir / "s.db", bytes);
  expect_error(ErrorKind::kData, {"s.db", "damaged"}, [&] { State(dir / "s.db"); });
}

TEST(State, IsItsUsersAlone) {
  Scratch dir;
  const auto others = [&](const char* name) {
    return fs::status(dir / name).permissions() & (fs::perms::group_all | fs::perms::others_all);
  };
  {
    State state(dir / "s.db");
  }
  EXPECT_EQ(others("s.db"), fs::perms::none);
  fs::permissions(dir / "s.db", fs::perms::owner_read | fs::perms::owner_write | fs::perms::others_read);
  State state(dir / "s.db");
  EXPECT_EQ(others("s.db"), fs::perms::none) << "one of an earlier version, too";
  Transaction transaction(state);
  state.set_value("k", "v");
  EXPECT_EQ(others("s.db-journal"), fs::perms::none);
  transaction.commit();
}

Measurement measured(int64_t time, int64_t requests, int64_t epoch = 1) {
  Measurement m;
  m.epoch = epoch;
  m.time = time;
  m.log10_e = 0.5;
  m.log10_alarm = 6;
  m.requests = {requests, 0.7 * static_cast<double>(requests), 0.75 * static_cast<double>(requests), 0.01};
  m.domains["a"] = {m.requests, -0.25};
  m.counters["http://h/metrics"] = {1000, 600, 0, 0};
  return m;
}

TEST(State, KeepsAMeasurementForEveryTenMinutes) {
  Scratch dir;
  State state(dir / "s.db");
  EXPECT_TRUE(state.measurements().empty());
  state.add(measured(600, 10));
  state.add(measured(1199, 12));    // replaces the previous one, of the same ten minutes
  state.add(measured(1199, 2, 2));  // not replaced: the detectors were restarted (epoch 2)
  state.add(measured(1200, 15, 2));
  const auto all = state.measurements();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].time, 1199);
  EXPECT_EQ(all[0].requests.n, 12);
  EXPECT_DOUBLE_EQ(all[0].requests.acceptance, 8.4);
  EXPECT_DOUBLE_EQ(all[0].domains.at("a").sums.expected, 9.0);
  EXPECT_EQ(all[0].domains.at("a").log10_e, -0.25);
  EXPECT_EQ(all[0].counters.at("http://h/metrics").n, 1000);
  EXPECT_EQ(all[1].epoch, 2);
  EXPECT_EQ(all[2].requests.n, 15);
}

// After 30 days one measurement per hour is left. No request is lost, because measurements hold running sums.
TEST(State, OldMeasurementsAreOneAnHour) {
  Scratch dir;
  State state(dir / "s.db");
  Transaction transaction(state);
  constexpr int64_t kDay = 86400, kDays = 40;
  for (int64_t time = 0; time < kDays * kDay; time += 600) state.add(measured(time, time / 600 + 1));
  transaction.commit();
  const auto all = state.measurements();
  int64_t old = 0;
  for (const Measurement& m : all) old += m.time < (kDays - 31) * kDay;
  EXPECT_EQ(old, (kDays - 31) * 24);
  EXPECT_EQ(static_cast<int64_t>(all.size()) - old, 30 * 144 + 24);
  EXPECT_EQ(all.front().time, 3000) << "the last of the hour";
  int64_t requests = 0;
  for (const Period& p : periods_of(all, 100)) requests += p.requests.n;
  EXPECT_EQ(requests, kDays * 144);
}

// When a check or a report opens a file of an earlier version, the secrets of its URLs and commands are removed.
TEST(State, FormerSecretsAreForgotten) {
  Scratch dir;
  {
    State state(dir / "s.db");
    ActionEntry a;
    a.key = "k";
    a.kind = "webhook";
    a.payload = {{"url", "https://hooks.slack.com/services/T0/B0/xyz"}, {"body", {{"n", 1}}}};
    state.add_action(a);
    a.key = "l";
    a.kind = "command";
    a.payload = {{"argv", {"/bin/sh", "-c", "curl -H hunter2"}}};
    state.add_action(a);
    for (const char* url : {"1 http://me:hunter2@host/metrics", "1 http://host/metrics?token=s3cret",
                            "1 http://***@host/metrics?***", "1 prometheus+http://host?match={job=\"v\"}"})
      state.set_counters(url, {});
    const std::string url = "http://me:hunter2@host:9090/metrics?token=s3cret",
                      alarm = url + ", http://b/metrics: acceptance is 0.1";
    state.append(HistoryEntry{
        0,
        5,
        "drift",
        "p",
        {{"reason", alarm},
         {"evidence", {{"notes", {alarm}}, {"counter_alarms", {alarm}}, {"sources", {{"set_aside", {url}}}}}}}});
    state.append(HistoryEntry{
        0, 6, "trigger", "p", {{"command", "curl -H hunter2"}, {"exit_code", 3}, {"reason", "--on-drift: exit 3"}}});
    state.append(
        TransitionEntry{0, 6, "HEALTHY", "SUSPECT", "alarm", alarm, {{"evidence", {{"counter_alarms", {alarm}}}}}});
    state.set_value("machine", Json({{"reason", alarm}}).dump());
    state.set_value("removed", std::string(20000, 'x') + url);
  }
  {
    SQLite::Database old((dir / "s.db").string(), SQLite::OPEN_READWRITE);
    old.exec("PRAGMA secure_delete = OFF; DELETE FROM value WHERE key = 'removed'; PRAGMA user_version = 1");
    fs::copy_file(dir / "s.db", dir / "s.db.v1");
    old.exec("PRAGMA user_version = 2");
  }
  State state(dir / "s.db", State::Open::kExisting);
  for (const char* file : {"s.db", "s.db.v1"}) {
    const std::string bytes = get(dir / file);
    for (const char* secret : {"B0/xyz", "hunter2", "s3cret"})
      EXPECT_EQ(bytes.find(secret), std::string::npos) << file << ": " << secret;
  }
  const std::string shown = "http://***@host:9090/metrics?***, http://b/metrics: acceptance is 0.1";
  const std::vector<HistoryEntry> history = state.history(9);
  ASSERT_EQ(history.size(), 2u);
  EXPECT_EQ(history[0].evidence["reason"], shown);
  EXPECT_EQ(history[0].evidence["evidence"]["counter_alarms"][0], shown);
  EXPECT_EQ(history[1].evidence, (Json{{"exit_code", 3}, {"reason", "--on-drift: exit 3"}}));
  EXPECT_EQ(state.transitions(9).at(0).reason, shown);
  EXPECT_EQ(Json::parse(state.value("machine"))["reason"], shown);
  EXPECT_THROW(
      SQLite::Database((dir / "s.db").string(), SQLite::OPEN_READWRITE).exec("UPDATE history SET verdict = 'x'"),
      SQLite::Exception);
  EXPECT_THROW(
      SQLite::Database((dir / "s.db").string(), SQLite::OPEN_READWRITE).exec("UPDATE transition SET reason = 'x'"),
      SQLite::Exception);
  EXPECT_EQ(state.action("k")->payload, (Json{{"body", {{"n", 1}}}}));
  EXPECT_TRUE(state.counters("1 http://***@host/metrics?***"));
  EXPECT_TRUE(state.counters("1 prometheus+http://host?match={job=\"v\"}"));
}

}  // namespace
}  // namespace specdec::monitor
