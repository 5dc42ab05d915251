// A fixture that monitors a draft over simulated weeks: each step is a real check of simulated records, six hours after
// the previous check.
#pragma once

#include "monitor/report/life_page.h"
#include "monitor/sources_check.h"
#include "tests/monitor/looped.h"

namespace specdec::monitor {

class Lived : public Looped {
 protected:
  static constexpr int kStep = 6 * 3600;

  Lived() {
    options.policy.candidate = (dir / "store").string() + ":candidate";
    options.policy.admin = admin.url();
    options.policy.canary = "canary-data";
    options.policy.loop = (dir / "LOOP.toml").string();
    specdec::testing::put(dir / "LOOP.toml", "");
    specdec::testing::put(dir / "probe.json", probe(-0.1, -0.12, -0.08));
  }

  // Makes `checks` checks of 60 new requests each. `chat` and `code` are the mean overlaps of the segments with these
  // names.
  void live(int checks, double chat = 0.80, double code = 0.60, const std::string& target = "own") {
    for (int i = 0; i < checks; ++i) {
      clock.now += kStep;
      written = clock.unix_seconds() - 1699990000 - 100;
      write_requests(60, chat, code, "own", target);
      see();
    }
  }
  // Makes the next redistillation put a new package into the candidate channel. Returns the package's digest.
  std::string prepare_candidate(const std::string& name, int bump) {
    const std::string digest = make_candidate(name, bump);
    fs::rename(dir / "store/refs/candidate", dir / "store/refs/next");
    specdec::testing::put(dir / "train.sh", "mv store/refs/next store/refs/candidate\n");
    return digest;
  }

  // Makes every kind of event: a failed and a successful redistillation, a candidate that wins its trial (canary) and
  // one that loses it, a promotion that is rolled back, and another target for a while.
  void live_it_all() {
    live(40);
    specdec::testing::put(dir / "train.code", "1");
    live(4, 0.80, 0.45);
    fs::remove(dir / "train.code");
    prepare_candidate("second", 5);
    live(6, 0.80, 0.45);
    scores(admin, -0.2, 0.3);
    live(8, 0.80, 0.45);
    scores(admin, 0.05, 0.15);
    live(1, 0.80, 0.45);
    draft_id = new_draft;
    live(40, 0.81, 0.62);
    make_candidate("third", 6);
    live(4);
    scores(admin, -0.3, -0.1);
    live(8);
    const std::string before = draft_id;
    make_candidate("fourth", 7);
    live(2);
    scores(admin, 0.05, 0.15);
    live(1);
    draft_id = new_draft;
    clock.now -= kStep / 2;
    written = clock.unix_seconds() - 1699990000;
    write_requests(600, 0.60, 0.40);
    live(1, 0.60, 0.40);
    draft_id = before;
    live(20);
    options.policy.loop.clear();
    live(6, 0.80, 0.60, std::string(12, 'b'));
    live(20);
  }

  Life life() const { return read_life(State(options.state, State::Open::kExisting), report_file(options.state)); }
  static int count(const Life& life, EventKind kind, const std::string& what) {
    return static_cast<int>(std::count_if(life.events.begin(), life.events.end(), [&](const LifeEvent& e) {
      return e.kind == kind && e.what.find(what) != std::string::npos;
    }));
  }

  ToyAdmin admin;
};

}  // namespace specdec::monitor
