// Tests checks of sources whose traffic cannot be judged. Old evidence must not count as "healthy", and a server
// without traffic must not raise an alarm.
#include <gtest/gtest.h>

#include "monitor/statistics/counter_chart.h"
#include "tests/monitor/loopback.h"
#include "tests/monitor/monitored.h"

namespace specdec::monitor {
namespace {

class Blind : public Monitored {
 protected:
  Blind() { options.sources = {server.url()}; }

  // Returns the /metrics lines of a replica `pod` that has made `steps` steps with K = 1 at mean overlap `overlap`.
  static std::string replica(const std::string& pod, double steps, double overlap) {
    const auto line = [&](const std::string& name, const std::string& position, double value) {
      const std::string labels = (pod.empty() ? "" : "pod=\"" + pod + "\"") + (pod.empty() ? position : "," + position);
      return "specdec:spec_decode_" + name + (labels.empty() ? "" : "{" + labels + "}") + " " + std::to_string(value) +
             "\n";
    };
    const std::string at = "position=\"0\"";
    return line("num_drafts_total", "", steps) + line("num_draft_tokens_total", "", steps) +
           line("num_reached_tokens_per_pos_total", at, steps) +
           line("overlap_sum_per_pos_total", at, steps * overlap) +
           line("num_accepted_tokens_per_pos_total", at, steps * overlap);
  }
  CheckResult see(const std::string& page) {
    server.page(page);
    clock.now += 300;
    return check(options, clock);
  }
  // Runs checks of one good replica until the verdict is "healthy".
  void judged_before() {
    CheckResult r;
    for (int i = 0; i < 13; ++i) r = see(replica("", steps += 1000, 0.7));
    ASSERT_EQ(r.verdict, Verdict::kHealthy) << r.reason;
  }
  void expect_blind(const CheckResult& r) {
    EXPECT_EQ(r.verdict, Verdict::kInconclusive) << r.reason;
    EXPECT_EQ(r.exit_code, 4);
    EXPECT_NE(r.reason.find("nothing was judged since 2023-11-1"), std::string::npos) << r.reason;
    EXPECT_EQ(r.json["figure"]["name"], "unjudged_looks");
  }

  Loopback server;
  specdec::testing::ManualClock clock;
  double steps = 0;
};

TEST_F(Blind, NewNamesAtEachLookAreNotHealthyForEver) {
  judged_before();
  CheckResult r;
  for (int i = 1; i <= 26; ++i) {
    r = see(replica("p" + std::to_string(i), 20000, 0.05));
    if (i < 10) EXPECT_EQ(r.verdict, Verdict::kHealthy) << i << ": " << r.reason;
    if (i >= 10) expect_blind(r);
  }
  EXPECT_NE(r.reason.find("26 looks"), std::string::npos) << r.reason;
  see(replica("p26", 21000, 0.7));
  r = see(replica("p26", 22000, 0.7));
  EXPECT_EQ(r.verdict, Verdict::kHealthy) << r.reason;
}

// In each check, one small replica can be judged, and the large replicas have new names, so they cannot be judged. The
// verdict becomes inconclusive.
TEST_F(Blind, OneSmallReplicaDoesNotStandForTheOthers) {
  judged_before();
  CheckResult r;
  for (int i = 1; i <= 12; ++i) r = see(replica("", steps += 60, 0.7) + replica("p" + std::to_string(i), 20000, 0.05));
  expect_blind(r);
}

TEST_F(Blind, RestartsAtEachLookAreNotHealthyForEver) {
  judged_before();
  CheckResult r;
  for (int i = 0; i < 12; ++i) r = see(replica("", 49 - i, 0.05));
  expect_blind(r);
}

TEST_F(Blind, StepsWithoutTestedPositionsAreNotHealthyForEver) {
  judged_before();
  CheckResult r;
  for (int i = 1; i <= 12; ++i)
    r = see("specdec:spec_decode_num_drafts_total " + std::to_string(steps + 1000 * i) + "\n" +
            replica("", steps, 0.7).substr(replica("", steps, 0.7).find('\n') + 1));
  expect_blind(r);
}

// Without traffic (at night) the verdict stays "healthy", and the reason names the time since when there was nothing
// new to judge.
TEST_F(Blind, AQuietServerIsNoAlarm) {
  judged_before();
  CheckResult r;
  for (int i = 0; i < 100; ++i) {
    r = see(replica("", steps, 0.7));
    ASSERT_EQ(r.verdict, Verdict::kHealthy) << i << ": " << r.reason;
  }
  EXPECT_NE(r.reason.find("nothing new to judge since 2023-11-14T23:"), std::string::npos) << r.reason;
  steps = 0;  // the server is restarted and then has no traffic
  for (int i = 0; i < 40; ++i) {
    r = see(replica("", 5, 0.6) + replica("new", 0, 0));
    ASSERT_EQ(r.verdict, Verdict::kHealthy) << i << ": " << r.reason;
  }
}

// A server with little traffic stays "healthy", however many checks it takes until there are enough counts to be
// judged.
TEST_F(Blind, ASlowServerIsNoAlarm) {
  judged_before();
  for (int i = 0; i < 120; ++i) {
    const CheckResult r = see(replica("", steps += i % 3 == 0, 0.7));
    ASSERT_EQ(r.verdict, Verdict::kHealthy) << i << ": " << r.reason;
  }
}

TEST_F(Blind, RequestsThatCannotBeJudgedAreNotHealthyForEver) {
  options.sources = {dir / "log.jsonl"};
  write_requests(100, 0.80, 0.60);
  CheckResult r = look();
  for (int i = 0; i < 30; ++i) EXPECT_EQ((r = look()).verdict, Verdict::kHealthy) << "no requests: " << r.reason;
  EXPECT_NE(r.reason.find("nothing new to judge since"), std::string::npos) << r.reason;
  for (int i = 0; i < 30; ++i) {
    write_requests(5, 0.80, 0.60, "0123456789ab");
    EXPECT_EQ((r = look()).verdict, Verdict::kHealthy) << "another pair's: " << r.reason;
  }
  for (int i = 0; i < 12; ++i) {
    AcceptanceRecord plain;
    plain.time = 1699999000 + i;
    plain.draft = draft_id.substr(0, 12);
    plain.counts.plain_steps = plain.counts.emitted = 40;
    std::ofstream(dir / "log.jsonl", std::ios::app) << to_line(plain) << "\n";
    r = look();
  }
  expect_blind(r);
  EXPECT_NE(r.reason.find("decoded without the draft"), std::string::npos) << r.reason;
}

// With too little judged data the verdict is inconclusive, even if a source cannot be read at the same time.
TEST_F(Blind, ASourceThatIsSetAsideDoesNotHideThatNothingWasJudged) {
  fs::create_directory(dir / "empty");
  specdec::testing::put(dir / "empty/none.jsonl", "");
  options.sources = {(dir / "empty").string()};
  EXPECT_EQ(look().exit_code, 4);
  options.sources.push_back((dir / "nosuch").string());
  const CheckResult r = look();
  EXPECT_EQ(r.verdict, Verdict::kInconclusive);
  EXPECT_EQ(r.exit_code, 4);
  EXPECT_NE(r.reason.find("nosuch"), std::string::npos) << r.reason;
}

// One specdec:info line that names another target must not outvote replicas that name no target.
TEST_F(Blind, OneInfoLineDoesNotOutvoteTheOtherReplicas) {
  const auto info = [](const std::string& pod) {
    return "specdec:info{pod=\"" + pod + "\",draft=\"aaaaaaaaaaaa\",target=\"bbbbbbbbbbbb\"} 1\n";
  };
  const auto fleet = [&] {
    std::string page;
    steps += 1000;
    for (int i = 0; i < 20; ++i) page += replica("p" + std::to_string(i), steps, 0.7);
    return page;
  };
  CheckResult r;
  for (int i = 0; i < 15; ++i) r = see(fleet() + replica("evil", steps, 0.1) + info("evil"));
  EXPECT_EQ(r.verdict, Verdict::kWarn) << r.reason;
  EXPECT_EQ(r.exit_code, 0);
  EXPECT_NE(r.reason.find("1 of 21 servers"), std::string::npos) << r.reason;
  std::string all;
  for (int i = 0; i < 20; ++i) all += info("p" + std::to_string(i));
  EXPECT_EQ(see(fleet() + all).verdict, Verdict::kStaleTarget) << "all of them: at the first look";
}

// If any replica has counters, the specdec:info line of a replica without counters only causes a warning. It does not
// show that another target is served.
TEST_F(Blind, AnInfoLineWithoutCountersIsNoReplica) {
  CheckResult r;
  for (int i = 0; i < 13; ++i)
    r = see(replica("honest", steps += 1000, 0.7) +
            "specdec:info{pod=\"evil\",draft=\"aaaaaaaaaaaa\",target=\"bbbbbbbbbbbb\"} 1\n");
  EXPECT_EQ(r.verdict, Verdict::kWarn) << r.reason;
  EXPECT_NE(r.reason.find("another pair than the package's on 1 of 2 servers"), std::string::npos) << r.reason;
}

TEST_F(Blind, ARecordOfTheFutureIsNotTheNewest) {
  options.sources = {dir / "log.jsonl"};
  write_requests(100, 0.80, 0.60);
  EXPECT_EQ(look().exit_code, 0);
  written = 10000 + 23 * 3600;
  write_requests(12, 0.80, 0.60, "own", "0123456789ab");
  // The first check that finds another target does not store its positions in the records, so the next check reads the
  // same records again.
  for (int i = 0; i < 2; ++i) EXPECT_EQ(check(options, clock).verdict, Verdict::kStaleTarget);
  written = 10000 + 60;
  clock.now = 600;
  write_requests(60, 0.80, 0.60);
  const CheckResult r = check(options, clock);
  EXPECT_EQ(r.verdict, Verdict::kHealthy) << r.reason;
}

TEST_F(Blind, ANewTargetAtEachLookIsOneAlarm) {
  options.on_drift = "echo \"$SPECDEC_ALARM_VERDICT\" >> " + (dir / "runs").string();
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(see(replica("", steps += 1000, 0.7) + "specdec:info{draft=\"" + draft_id + "\",target=\"" +
                  std::string(12, static_cast<char>('a' + i)) + "\"} 1\n")
                  .verdict,
              Verdict::kStaleTarget);
  EXPECT_EQ(specdec::testing::get(dir / "runs"), "stale_target\n");
}

// However many replicas come and go before there are enough counts to be judged, the state stays small enough to be
// read.
TEST_F(Blind, ReplicasThatComeAndGoAreForgotten) {
  judged_before();
  for (int i = 0; i < 14; ++i) {
    std::string page = replica("", steps, 0.7);
    for (int pod = 0; pod < 400; ++pod) page += replica(std::to_string(i) + "-" + std::to_string(pod), 10, 0.7);
    ASSERT_NO_THROW(see(page)) << i;
  }
  EXPECT_LT(fs::file_size(options.state), 4u << 20);
}

// The history is never shortened, so a page must not be able to write without limit into it.
TEST_F(Blind, WhatIsSetAsideIsCountedAndNotListed) {
  judged_before();
  std::string bad;
  for (int i = 0; i < 3000; ++i)
    bad += "specdec:spec_decode_num_drafts_total{pod=\"" + std::string(90, 'x') + std::to_string(i) + "\"} NaN\n";
  for (int i = 0; i < 6; ++i) {
    const CheckResult r = see(replica("", steps += 1000, 0.7) + (i % 2 ? "" : bad));
    EXPECT_EQ(r.verdict, i % 2 ? Verdict::kHealthy : Verdict::kWarn) << r.reason;
    const Json& sources = r.json["evidence"]["sources"];
    EXPECT_LE(sources["set_aside"].size(), 11u);
    if (i % 2 == 0) EXPECT_NE(sources["set_aside"].dump().find("and 29"), std::string::npos) << sources["set_aside"];
  }
  for (const HistoryEntry& e : State(options.state).history(INT64_MAX)) EXPECT_LT(e.evidence.dump().size(), 10000u);
}

}  // namespace
}  // namespace specdec::monitor
