#include "monitor/loop_driver.h"

#include "base/file_lock.h"
#include "monitor/actions/child.h"
#include "tests/monitor/looped.h"

namespace specdec::monitor {
namespace {

using specdec::testing::expect_error;
using specdec::testing::get;
using specdec::testing::put;

TEST_F(Looped, AnAlarmIsConfirmedOnTheCanarySet) {
  options.policy.canary = "canary-data";
  put(dir / "probe.json", probe(-0.1, -0.12, -0.08));
  drift();
  const CheckResult r = see();
  EXPECT_EQ(r.verdict, Verdict::kDrift);
  EXPECT_EQ(r.exit_code, 3);
  EXPECT_EQ(way(), "HEALTHY -alarm-> SUSPECT -confirmed-> CONFIRMED ");
  EXPECT_EQ(r.json["state"], "CONFIRMED");
  EXPECT_EQ(r.json["transitions"].size(), 2u);
  EXPECT_EQ(r.json["waiting"][0], "no redistillation: no redistillation is set up (--loop, --redistil or --job)");
  const std::string asked = get(dir / "asked");
  EXPECT_NE(asked.find("--data canary-data"), std::string::npos) << asked;
  EXPECT_NE(asked.find("--parts acceptance --baseline " + options.state.string() + ".actions/baseline.json"),
            std::string::npos)
      << asked;
  const auto rows = State(options.state).transitions(9);
  EXPECT_EQ(rows[1].evidence["baseline"]["paired_requests"], 200);
  EXPECT_EQ(rows[0].evidence["evidence"]["strata"].size(), 2u);
  EXPECT_EQ(read_json(options.state.string() + ".report.json")["state"], "CONFIRMED");
}

TEST_F(Looped, ARefutedAlarmStartsTheDetectorsAnew) {
  options.policy.canary = "canary-data";
  put(dir / "probe.json", probe(0.0, -0.015, 0.015));
  drift();
  EXPECT_EQ(see().json["state"], "HEALTHY");
  EXPECT_EQ(memory().false_alarms, 1);
  EXPECT_EQ(see().verdict, Verdict::kInconclusive) << "the evidence so far is used up";
  EXPECT_EQ(way(), "HEALTHY -alarm-> SUSPECT -refuted-> HEALTHY ");
}

TEST_F(Looped, AnUndecidedProbeIsAskedAgainTheNextDay) {
  options.policy.probe = "cat " + (dir / "probe.json").string() + "; echo >> " + (dir / "probes").string();
  put(dir / "probe.json", probe(-0.02, -0.05, 0.01));
  drift();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(see().json["state"], "SUSPECT");
  EXPECT_EQ(get(dir / "probes"), "\n") << "once a day";
  put(dir / "probe.json", probe(-0.1, -0.12, -0.08, 29));
  clock.now += 86400;
  EXPECT_EQ(see().json["state"], "SUSPECT") << "too few requests";
  put(dir / "probe.json", "no result");
  clock.now += 86400;
  const CheckResult r = see();
  EXPECT_EQ(r.json["state"], "SUSPECT");
  EXPECT_NE(r.json["waiting"].dump().find("cannot be used"), std::string::npos) << r.json["waiting"];
  put(dir / "probe.json", probe(-0.1, -0.12, -0.08));
  clock.now += 86400;
  EXPECT_EQ(see().json["state"], "CONFIRMED");
}

TEST_F(Looped, RedistilsOnceAndTakesTheNewPackage) {
  options.policy.alarm_confirms = true;
  options.policy.loop = dir / "LOOP.toml";
  options.policy.candidate = (dir / "store").string() + ":candidate";
  make_candidate("c", 5);
  fs::rename(dir / "store/refs/candidate", dir / "refs.new");
  put(dir / "train.sh", "mv refs.new store/refs/candidate\n");
  drift();
  const CheckResult r = see();
  EXPECT_EQ(way(), "HEALTHY -alarm-> SUSPECT -confirmed-> CONFIRMED -go-> REDISTILLING -candidate-> CANDIDATE ");
  EXPECT_EQ(r.json["verdict"], "drift");
  EXPECT_EQ(trainings(), 1);
  EXPECT_EQ(get(dir / "trained"), memory().key + "\n");
  for (int i = 0; i < 3; ++i) see();
  EXPECT_EQ(stage(), "CANDIDATE") << "no server is given: the operator promotes";
  EXPECT_EQ(trainings(), 1);
  put(dir / "store/refs/production", get(dir / "store/refs/candidate"));
  see();
  EXPECT_EQ(stage(), "HEALTHY");
}

TEST_F(Looped, ALoopThatIsNotDoneGoesOnAtTheNextCheck) {
  options.policy.alarm_confirms = true;
  options.policy.loop = "LOOP.toml";
  put(dir / "train.code", "75");
  drift();
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQ(see().json["state"], "REDISTILLING");
    EXPECT_EQ(trainings(), i);
  }
  const std::string keys = get(dir / "trained");
  EXPECT_EQ(keys.substr(0, 65), keys.substr(65, 65)) << "under the same key";
  put(dir / "train.code", "3");
  EXPECT_EQ(see().json["state"], "CONFIRMED") << "its gate said no";
  EXPECT_NE(see().json["waiting"].dump().find("cooldown"), std::string::npos);
  clock.now += 86400;
  EXPECT_NE(see().json["waiting"].dump().find("too little new data: 0 requests"), std::string::npos);
  EXPECT_EQ(trainings(), 4);
  write_requests(200, 0.80, 0.45);
  put(dir / "train.code", "0");
  const CheckResult r = see();
  EXPECT_EQ(trainings(), 5) << "new data, another key";
  EXPECT_EQ(r.json["state"], "CONFIRMED");
  EXPECT_NE(State(options.state).transitions(1)[0].reason.find("no new package"), std::string::npos);
}

// A clock that once was years ahead leaves times in the future in the state. Cooldown, budget and bake time must not
// wait for them.
TEST_F(Looped, AClockThatRanAheadIsNotBelieved) {
  options.policy.alarm_confirms = true;
  options.policy.loop = "LOOP.toml";
  put(dir / "train.code", "3");
  drift();
  clock.now += 10 * 365 * 86400.0;
  see();
  EXPECT_EQ(trainings(), 1);
  clock.now -= 10 * 365 * 86400.0;
  write_requests(200, 0.80, 0.45);
  EXPECT_EQ(see().json["state"], "CONFIRMED");
  EXPECT_EQ(trainings(), 2) << "the redistillation of the future is not waited for";
  EXPECT_LE(memory().since, clock.unix_seconds());
  EXPECT_NE(see().json["waiting"].dump().find("cooldown"), std::string::npos) << "but that of today is";
  Memory ahead;
  ahead.since = ahead.bake_until = clock.unix_seconds() + 86400 * 1000;
  disbelieve_future(ahead, clock.unix_seconds(), 24);
  EXPECT_EQ(ahead.since, clock.unix_seconds());
  EXPECT_EQ(ahead.bake_until, clock.unix_seconds() + 86400);
}

TEST_F(Looped, TheBudgetOfAWeek) {
  options.policy.alarm_confirms = true;
  options.policy.loop = "LOOP.toml";
  options.policy.cooldown_hours = 1;
  options.policy.budget = 2;
  put(dir / "train.code", "1");
  drift();
  for (int i = 0; i < 4; ++i) {
    see();
    clock.now += 2 * 3600;
    write_requests(200, 0.80, 0.45);
  }
  EXPECT_EQ(trainings(), 2);
  EXPECT_NE(see().json["waiting"].dump().find("budget: 2 redistillations in 7 days, 2 allowed"), std::string::npos);
  clock.now += 7 * 86400;
  see();
  EXPECT_EQ(trainings(), 3);
}

class Tried : public Looped {
 protected:
  Tried() {
    options.policy.candidate = (dir / "store").string() + ":candidate";
    options.policy.admin = admin.url();
  }
  ToyAdmin admin;
};

TEST_F(Tried, ABetterCandidateIsPromoted) {
  write_requests(200, 0.80, 0.60);
  const std::string candidate = make_candidate("c", 5);
  EXPECT_EQ(see().json["state"], "CANARY");
  EXPECT_EQ(admin.orders(), (std::vector<std::string>{"load"}));
  scores(admin, -0.2, 0.3);
  const CheckResult r = see();
  EXPECT_EQ(r.json["state"], "CANARY");
  EXPECT_NE(r.json["waiting"].dump().find("[-0.200, +0.300] over 200 conversations"), std::string::npos)
      << r.json["waiting"];
  scores(admin, -0.005, 0.3);
  const CheckResult promoted = see();
  EXPECT_EQ(promoted.json["state"], "HEALTHY");
  EXPECT_EQ(promoted.json["inputs"]["package"], candidate) << "the look is at the new one already";
  EXPECT_EQ(admin.orders(), (std::vector<std::string>{"load", "promote"}));
  EXPECT_EQ(get(dir / "store/refs/production"), candidate + "\n");
  EXPECT_EQ(way(), "HEALTHY -candidate-> CANDIDATE -on_trial-> CANARY -better-> HEALTHY ");
  see();
  EXPECT_EQ(stage(), "HEALTHY");
}

TEST_F(Tried, AWorseCandidateIsDroppedForEver) {
  write_requests(200, 0.80, 0.60);
  make_candidate("c", 5);
  see();
  scores(admin, -0.3, -0.1);
  EXPECT_EQ(see().json["state"], "HEALTHY") << "rolled back, and the look that follows is calm";
  EXPECT_EQ(way(), "HEALTHY -candidate-> CANDIDATE -on_trial-> CANARY -worse-> ROLLED_BACK -quiet-> HEALTHY ");
  EXPECT_EQ(admin.orders(), (std::vector<std::string>{"load", "drop"}));
  EXPECT_EQ(get(dir / "store/refs/production"), package + "\n");
  see();
  EXPECT_EQ(admin.orders().size(), 2u) << "never again";
  make_candidate("c2", 6);
  see();
  EXPECT_EQ(admin.orders().size(), 3u) << "another one is";
  scores(admin, 0.05, 0.1, 0.3);
  see();
  EXPECT_EQ(memory().rejected.size(), 2u) << "better than the serving draft and below the floor of its gate";
}

TEST_F(Tried, ARelapseWithinTheBakeTimeIsRolledBack) {
  write_requests(200, 0.80, 0.60);
  const std::string candidate = make_candidate("c", 5);
  see();
  scores(admin, 0.05, 0.3);
  see();
  const std::string old_draft = draft_id;
  draft_id = new_draft;
  write_requests(600, 0.60, 0.40);
  clock.now += 3600;
  const CheckResult r = see();
  EXPECT_EQ(r.json["state"], "ROLLED_BACK");
  EXPECT_EQ(get(dir / "store/refs/production"), package + "\n");
  EXPECT_EQ(admin.orders(), (std::vector<std::string>{"load", "promote", "load", "promote"}))
      << "the server has the former draft";
  EXPECT_TRUE(memory().rejected.contains(candidate));
  EXPECT_EQ(see().json["inputs"]["package"], package);
  draft_id = old_draft;
  write_requests(200, 0.80, 0.60);
  EXPECT_EQ(see().json["state"], "HEALTHY");
  EXPECT_EQ(admin.orders().size(), 4u) << "the candidate that relapsed is not tried again";
}

// Exit code 74 of `specdec package` is an I/O error and says nothing about the package, so the next check tries the
// promotion again. An alarm that comes in between waits for the promotion.
TEST_F(Tried, AMoveThatTheDiskFailedIsMadeAtTheNextCheck) {
  write_requests(200, 0.80, 0.60);
  const std::string candidate = make_candidate("c", 5);
  see();
  scores(admin, 0.05, 0.3);
  put(dir / "package.code", "74");
  const CheckResult failed = see();
  EXPECT_NE(failed.json["waiting"].dump().find("promote: channel production: exit 74"), std::string::npos)
      << failed.json["waiting"];
  write_requests(600, 0.80, 0.45);
  EXPECT_EQ(see().verdict, Verdict::kDrift) << "of the package that is still in the channel";
  EXPECT_EQ(stage(), "HEALTHY");
  EXPECT_TRUE(memory().rejected.empty());
  EXPECT_EQ(admin.orders(), (std::vector<std::string>{"load"}));
  fs::remove(dir / "package.code");
  EXPECT_EQ(see().json["inputs"]["package"], candidate);
  EXPECT_EQ(admin.orders(), (std::vector<std::string>{"load", "promote"}));
  put(dir / "package.code", "74");
  draft_id = new_draft;
  write_requests(600, 0.60, 0.40);
  EXPECT_EQ(see().json["state"], "ROLLED_BACK");
  EXPECT_EQ(get(dir / "store/refs/production"), candidate + "\n");
  fs::remove(dir / "package.code");
  EXPECT_EQ(see().json["inputs"]["package"], package);
  EXPECT_EQ(get(dir / "store/refs/production"), package + "\n");
  EXPECT_EQ(way().substr(0, way().find("relapse")),
            "HEALTHY -candidate-> CANDIDATE -on_trial-> CANARY -better-> HEALTHY -");
}

TEST_F(Tried, AMoveThatNeverSucceedsIsGivenUp) {
  write_requests(200, 0.80, 0.60);
  const std::string candidate = make_candidate("c", 5);
  see();
  scores(admin, 0.05, 0.3);
  put(dir / "package.code", "74");
  for (int i = 1; i < 20; ++i) see();
  EXPECT_TRUE(memory().rejected.empty());
  see();
  EXPECT_TRUE(memory().rejected.contains(candidate));
  EXPECT_TRUE(State(options.state).pending_actions().empty());
  EXPECT_EQ(admin.orders(), (std::vector<std::string>{"load"})) << "the server keeps what is in the channel";
}

TEST_F(Tried, WhatTheServerSaysDecides) {
  write_requests(200, 0.80, 0.60);
  make_candidate("c", 5);
  admin.token = "secret";
  CheckResult r = see();
  EXPECT_EQ(r.json["state"], "CANDIDATE");
  EXPECT_NE(r.json["waiting"].dump().find("no key"), std::string::npos) << "tried again: " << r.json["waiting"];
  options.policy.admin_key = "secret";
  admin.set([](Json& s) { s["candidate"] = {{"name", "somebody's"}, {"id", "x"}}; });
  EXPECT_EQ(see().json["state"], "CANDIDATE") << "another draft is on trial";
  admin.set([](Json& s) { s["candidate"] = nullptr; });
  EXPECT_EQ(see().json["state"], "CANARY");
  admin.set([](Json& s) { s["candidate"] = nullptr, s["state"] = "none"; });
  EXPECT_EQ(see().json["state"], "CANARY") << "the server was restarted: ordered anew";
  EXPECT_EQ(admin.orders(), (std::vector<std::string>{"load", "load"}));
  clock.now += 8 * 86400;
  EXPECT_EQ(see().json["state"], "HEALTHY");
  EXPECT_NE(way().find("-expired-> ROLLED_BACK"), std::string::npos) << way();
  make_candidate("c2", 6);
  admin.refuse = "memory";
  see();
  EXPECT_NE(way().find("CANDIDATE -refused-> ROLLED_BACK"), std::string::npos) << way();
  EXPECT_EQ(memory().rejected.size(), 2u);
}

TEST_F(Tried, OnlyWhatPassedItsGateForThisTarget) {
  write_requests(200, 0.80, 0.60);
  make_candidate("c", 5, [](ValidationReport& r) { r.verdict = Verdict::kFail; });
  CheckResult r = see();
  EXPECT_EQ(r.json["state"], "HEALTHY");
  EXPECT_NE(r.json["waiting"].dump().find("did not pass its gate (fail)"), std::string::npos) << r.json["waiting"];
  options.policy.allow_failed = true;
  EXPECT_EQ(see().json["state"], "CANARY");
  put(dir / "store/refs/candidate", package + "\n");
  EXPECT_EQ(see().json["state"], "HEALTHY") << "withdrawn";
  EXPECT_EQ(admin.orders(), (std::vector<std::string>{"load", "drop"}));
}

// After the served target is replaced, the loop trains a candidate for the new target without probe and cooldown.
// During that training it does not report the new target again.
TEST_F(Tried, AStaleTargetToItsEnd) {
  options.policy.loop = "LOOP.toml";
  write_requests(200, 0.80, 0.60);
  EXPECT_EQ(see().json["state"], "HEALTHY");
  specdec::testing::write_tiny_model(dir / "updated", {.layers = 2, .bump = 1, .vocab = 64, .hidden = 8});
  options.target = dir / "updated";
  put(dir / "train.code", "75");
  EXPECT_EQ(see().exit_code, 5);
  EXPECT_EQ(way(), "HEALTHY -stale-> STALE_TARGET -go-> REDISTILLING ");
  const std::string first_key = memory().key;
  specdec::testing::write_tiny_model(dir / "again", {.layers = 2, .bump = 2, .vocab = 64, .hidden = 8});
  options.target = dir / "again";
  see();
  EXPECT_NE(memory().key, first_key) << "another target, another redistillation";
  options.target = dir / "updated";
  EXPECT_NE(see().json["waiting"].dump().find("cooldown"), std::string::npos) << "for that one it has been begun today";
  EXPECT_EQ(trainings(), 2);
  clock.now += 86400;
  EXPECT_EQ(see().json["state"], "REDISTILLING");
  EXPECT_EQ(trainings(), 3);
}

TEST_F(Looped, SpeculationIsTurnedOffAndOn) {
  make_package("bare", 0, [](ValidationReport& r) {
    r.speedup = {1.01, {1.0, 1.02}, 8};
    r.best_k = 1;
  });
  to_store("bare", "production");
  options.policy.disable = "echo off >> " + (dir / "switch").string();
  options.policy.enable = "echo on >> " + (dir / "switch").string();
  options.policy.probe = "cat " + (dir / "probe.json").string();
  put(dir / "probe.json", Json({{"speed", {{"measured", {{"speedup", 1.0}, {"ci", {0.9, 1.1}}}}}}}).dump());
  write_requests(300, 0.77, 0.57);
  CheckResult r = see();
  EXPECT_EQ(r.exit_code, 6);
  EXPECT_EQ(r.json["state"], "DISABLED");
  see();
  EXPECT_EQ(get(dir / "switch"), "off\n") << "once";
  put(dir / "probe.json", Json({{"speed", {{"measured", {{"speedup", 1.2}, {"ci", {1.1, 1.3}}}}}}}).dump());
  clock.now += 86400;
  EXPECT_EQ(see().json["state"], "HEALTHY");
  EXPECT_EQ(get(dir / "switch"), "off\non\n");
}

TEST_F(Looped, AJobIsNamedAfterItsKey) {
  options.policy.alarm_confirms = true;
  options.policy.loop = "/etc/LOOP.toml";
  options.policy.job = dir / "job.yaml";
  options.policy.job_image = "specdec:1";
  options.policy.redistil =
      "printf %s $(grep -o 'specdec-redistil-[0-9a-f]*' " + options.policy.job + ") >> " + (dir / "applied").string();
  drift();
  EXPECT_EQ(see().json["state"], "REDISTILLING");
  const Json job = read_json(dir / "job.yaml");
  EXPECT_EQ(job["kind"], "Job");
  EXPECT_EQ(job["metadata"]["name"], "specdec-redistil-" + memory().key.substr(0, 16));
  EXPECT_EQ(job["spec"]["template"]["spec"]["containers"][0]["command"],
            (Json{"specdec", "loop", "run", "/etc/LOOP.toml"}));
  EXPECT_EQ(job["spec"]["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"], Json({0, 74, 75}))
      << "another node may have a disk that works";
  EXPECT_EQ(trainings(), 0) << "the cluster's work";
  EXPECT_EQ(get(dir / "applied"), "specdec-redistil-" + memory().key.substr(0, 16));
  EXPECT_EQ(see().json["state"], "REDISTILLING");
  clock.now += 86401;
  EXPECT_EQ(see().json["state"], "CONFIRMED") << "nothing came of it";
}

TEST_F(Looped, TheEndOfAChildIsTakenFromItsFileWhereThatIsWhole) {
  ChildOrder order{
      .argv = shell("echo >> " + (dir / "ran").string() + "; exit 3"), .environment = {}, .outcome = dir / "ends/one"};
  put(dir / "ends/one.code", "7\n");
  EXPECT_EQ(run_child(order).code, 7);
  EXPECT_FALSE(fs::exists(dir / "ran"));
  for (const char* cut_short : {"", "1"}) {  // what an exit-code file may hold after a power failure
    put(dir / "ends/one.code", cut_short);
    EXPECT_EQ(run_child(order).code, 3);
    EXPECT_EQ(get(dir / "ends/one.code"), "3\n");
  }
  EXPECT_EQ(get(dir / "ran"), "\n\n");
}

TEST_F(Looped, WrongFlags) {
  const auto with = [&](const std::function<void(Policy&)>& change) {
    return [this, change] {
      CheckOptions o = options;
      change(o.policy);
      check(o, clock);
    };
  };
  expect_error(ErrorKind::kUsage, {"--candidate", "STORE:CHANNEL"}, with([](Policy& p) { p.candidate = "store"; }));
  expect_error(ErrorKind::kUsage, {"--admin", "--candidate"}, with([](Policy& p) { p.admin = "unix:x"; }));
  expect_error(ErrorKind::kUsage, {"--loop", "--redistil"}, with([](Policy& p) { p.loop = p.redistil = "x"; }));
  expect_error(ErrorKind::kUsage, {"--canary", "--probe"}, with([](Policy& p) { p.canary = p.probe = "x"; }));
  expect_error(ErrorKind::kUsage, {"--redistil-gpu-hours", "--tokens-per-second"},
               with([](Policy& p) { p.gpu_hours = 1; }));
  expect_error(ErrorKind::kUsage, {"--job-image"}, with([](Policy& p) { p.job = "x"; }));
  expect_error(ErrorKind::kUsage, {"--job", "--loop"}, with([](Policy& p) { p.job = p.job_image = p.redistil = "x"; }));
  const FileLock lock(options.state.string() + ".lock");
  expect_error(ErrorKind::kNetwork, {"s.db.lock", "lock held"}, with([](Policy&) {}));
}

}  // namespace
}  // namespace specdec::monitor
