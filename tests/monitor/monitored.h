// A fixture with a package, a traffic log in the same directory, and functions that run the monitor on them.
#pragma once

#include <gtest/gtest.h>

#include <fstream>

#include "monitor/check.h"
#include "monitor/state/state.h"
#include "tests/base/manual_clock.h"
#include "tests/base/sample_package.h"
#include "tests/monitor/traffic.h"

namespace specdec::monitor {

// The package's report has K = 1 and two segments, each half of the traffic: "chat" with a mean overlap of .80 and
// "code" with .60.
class Monitored : public ::testing::Test {
 protected:
  Monitored() : dir(true) {
    make_package("p", 0);
    options.package = dir / "p";
    options.state = dir / "s.db";
    options.sources = {dir / "log.jsonl"};
  }

  void make_package(const std::string& name, int bump, const std::function<void(ValidationReport&)>& change = {}) {
    const PackageManifest m = specdec::testing::write_package(dir / name, bump, [&](ValidationReport& report) {
      report.rollout = rollout(0.70);
      report.segments.push_back({"chat", {0.8, {0.79, 0.81}, 50}, rollout(0.80), 1.0});
      report.segments.push_back({"code", {0.6, {0.59, 0.61}, 50}, rollout(0.60), 1.0});
      if (change) change(report);
    });
    draft_id = m.draft.id;
    target_id = m.target.id;
  }

  static RolloutFigures rollout(double overlap) {
    RolloutFigures r;
    r.k = 1;
    r.verify = "token";
    r.alpha = {overlap, {overlap - 0.005, overlap + 0.005}, 1000};
    for (int i = 0; i < 1000; ++i) r.counts.add_step(1, i % 10 < overlap * 10 ? 1 : 0, {overlap});
    return r;
  }

  // Appends `n` requests to the log, alternating between the segments "chat" and "code", whose mean overlaps are `chat`
  // and `code`. The records name the ids `draft` and `target`; "own" stands for the id in the package.
  void write_requests(int n, double chat, double code, const std::string& draft = "own",
                      const std::string& target = "own") {
    std::ofstream out(dir / "log.jsonl", std::ios::app);
    for (int i = 0; i < n; ++i) {
      AcceptanceRecord r;
      r.time = 1699990000 + written++;  // earlier than ManualClock's now
      r.segment = i % 2 ? "code" : "chat";
      r.draft = draft == "own" ? draft_id.substr(0, 12) : draft;
      r.target = target == "own" ? target_id.substr(0, 12) : target;
      r.counts = traffic.request(i % 2 ? code : chat);
      r.counts.drafted = r.counts.steps;
      r.counts.accepted_at = {r.counts.steps / 2};
      r.counts.accepted = r.counts.steps / 2;
      out << to_line(r) << "\n";
    }
  }

  CheckResult look() { return check(options, specdec::testing::ManualClock()); }
  std::vector<std::string> verdicts() {
    std::vector<std::string> all;
    for (const HistoryEntry& e : State(options.state).history(INT64_MAX)) all.push_back(e.verdict);
    return all;
  }

  specdec::testing::Scratch dir;
  CheckOptions options;
  std::string draft_id, target_id;
  Traffic traffic{77};
  int64_t written = 0;
};

}  // namespace specdec::monitor
