#include "deploy/validate/timed_pairs.h"

#include <gtest/gtest.h>

#include "tests/base/manual_clock.h"
#include "tests/validate/idle_meter.h"

namespace specdec::deploy {
namespace {

using specdec::testing::IdleMeter;
using specdec::testing::ManualClock;

// A meter of two CPUs. Other processes use `others` CPUs from second `from` to second `to`; this process uses the
// remaining CPU time.
class Neighbours final : public CpuMeter {
 public:
  Neighbours(const ManualClock& clock, double others, double from, double to)
      : clock_(clock), others_(others), from_(from), to_(to) {}
  int cpus() const override { return 2; }
  std::optional<CpuTime> read() const override {
    const double others = others_ * std::max(0.0, std::min(clock_.now, to_) - from_);
    return CpuTime{2 * clock_.now + 1, 2 * clock_.now - others, stolen * clock_.now};
  }
  double stolen = 0;

 private:
  const ManualClock& clock_;
  double others_, from_, to_;
};

PairFigures figures(double normal, double speculative) {
  PairFigures f;
  f.normal.seconds = normal;
  f.normal.counts.plain_steps = 10;
  f.speculative.seconds = speculative;
  f.speculative.counts.steps = 5;
  return f;
}

struct Runner {
  ManualClock clock;
  std::vector<size_t> order;
  double normal = 0.5, speculative = 0.25;
  PairFigures operator()(size_t at) {
    order.push_back(at);
    clock.now += normal + speculative;
    return figures(normal, speculative);
  }
  TimedPairs run(size_t count, const PairsOptions& options, const CpuMeter& meter) {
    return time_pairs(count, options, std::ref(*this), {clock, meter});
  }
};

TEST(TimedPairs, AnIdleMachineRunsEachOnce) {
  Runner r;
  const TimedPairs t = r.run(6, {.tolerance = 0.1}, IdleMeter());
  EXPECT_EQ(r.order, (std::vector<size_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(t.clean, std::vector<bool>(6, true));
  EXPECT_FALSE(t.machine.busy);
  EXPECT_EQ(t.machine.cpus, 2);
  EXPECT_EQ(t.machine.threads, 2);
  EXPECT_EQ(t.machine.runs, 6);
  EXPECT_EQ(t.machine.disturbed + t.machine.disagreeing, 0);
  EXPECT_EQ(t.machine.others, 0);
}

TEST(TimedPairs, DisturbedRunsComeAgainAtTheEnd) {
  Runner r;
  const Neighbours meter(r.clock, 1.5, 0.75, 2.25);  // disturbs runs 1 and 2
  const TimedPairs t = r.run(6, {}, meter);
  EXPECT_EQ(r.order, (std::vector<size_t>{0, 1, 2, 3, 4, 5, 1, 2}));
  EXPECT_EQ(t.clean, std::vector<bool>(6, true));
  EXPECT_EQ(t.machine.disturbed, 2);
  EXPECT_FALSE(t.machine.busy);
  EXPECT_NEAR(t.machine.others, 1.5 * 1.5 / 6, 1e-9);
  EXPECT_NEAR(t.machine.taken, 0.75 * 1.5 / 6, 1e-9);
}

TEST(TimedPairs, ABusyMachineIsGivenUp) {
  Runner r;
  const Neighbours meter(r.clock, 1, 0, 1e9);
  const TimedPairs t = r.run(6, {.patience_seconds = 0}, meter);
  EXPECT_EQ(r.order.size(), 6u) << "as many disturbed runs as there are, and no more";
  EXPECT_TRUE(t.machine.busy);
  EXPECT_EQ(t.clean, std::vector<bool>(6, false));
  EXPECT_EQ(t.runs[5].normal.seconds, 0.5) << "its times are there to be shown";
  Runner patient;
  const Neighbours same(patient.clock, 1, 0, 1e9);
  EXPECT_TRUE(patient.run(6, {.patience_seconds = 30}, same).machine.busy);
  EXPECT_EQ(patient.order.size(), 40u) << "short gates try for a while";
}

TEST(TimedPairs, CpusThatNobodyWantsDoNotDisturb) {
  Runner r;
  const Neighbours meter(r.clock, 1, 0, 1e9);
  EXPECT_EQ(r.run(4, {.threads = 1}, meter).machine.disturbed, 0) << "one thread beside one busy CPU of two";
  Neighbours stolen(r.clock, 0, 0, 0);
  stolen.stolen = 0.5;
  const MachineUse use = r.run(4, {.patience_seconds = 0}, stolen).machine;
  EXPECT_TRUE(use.busy) << "what the hypervisor takes counts as another's";
  EXPECT_NEAR(use.stolen, 0.5, 1e-9);
  EXPECT_NEAR(use.others, 0.5, 1e-9);
  EXPECT_TRUE(r.run(4, {.threads = 1, .patience_seconds = 0}, stolen).machine.busy)
      << "nor does an idle CPU give back what a limit took";
}

// The meter has coarse ticks, so several short runs share one window.
TEST(TimedPairs, ShortRunsShareAWindow) {
  Runner r;
  r.normal = 0.05, r.speculative = 0.05;
  const Neighbours meter(r.clock, 2, 0.55, 0.65);  // both CPUs for 0.1 s of the second window (0.5 to 1 s)
  const TimedPairs t = r.run(10, {}, meter);
  EXPECT_EQ(t.machine.disturbed, 5);
  EXPECT_EQ(t.machine.runs, 15);
  EXPECT_FALSE(t.machine.busy);
}

TEST(TimedPairs, TheShortestOfRepeatsCounts) {
  ManualClock clock;
  int calls = 0;
  const TimedPairs t = time_pairs(2, {.repeats = 3},
                                  [&](size_t) {
                                    clock.now += 1;
                                    return figures(++calls % 3 == 1 ? 9 : calls, 1);
                                  },
                                  {clock, IdleMeter()});
  EXPECT_EQ(calls, 6);
  EXPECT_EQ(t.runs[0].normal.seconds, 2);
  EXPECT_EQ(t.runs[1].normal.seconds, 5);
}

// A run whose time per step is much lower or higher than that of the other runs is repeated; no other run is.
TEST(TimedPairs, RunsThatDisagreeComeAgain) {
  for (const double odd : {0.5, 2.0}) {
    ManualClock clock;
    std::vector<int> calls(8, 0);
    const TimedPairs t = time_pairs(8, {.tolerance = 0.1},
                                    [&](size_t at) {
                                      clock.now += 1;
                                      const bool lost = at == 3 && calls[at] == 0;
                                      ++calls[at];
                                      return figures(1 + (lost && odd < 1 ? 1 : 0), 0.5 * (lost && odd > 1 ? 2 : 1));
                                    },
                                    {clock, IdleMeter()});
    EXPECT_EQ(calls, (std::vector<int>{1, 1, 1, 2, 1, 1, 1, 1})) << odd;
    EXPECT_EQ(t.machine.disagreeing, 1);
    EXPECT_EQ(t.runs[3].normal.seconds, 1);
    EXPECT_EQ(t.runs[3].speculative.seconds, 0.5);
  }
  ManualClock clock;
  std::vector<int> calls(8, 0);
  time_pairs(8, {.tolerance = 0.1},
             [&](size_t at) {
               clock.now += 1;
               ++calls[at];
               return figures(1, at == 3 ? 1 : 0.5);
             },
             {clock, IdleMeter()});
  EXPECT_EQ(calls[3], 3) << "what stays unlike the others is taken after two more tries";
}

TEST(TimedPairs, AMeterThatSaysNothingDisturbsNothing) {
  class Mute final : public CpuMeter {
    int cpus() const override { return 0; }
    std::optional<CpuTime> read() const override { return std::nullopt; }
  };
  Runner r;
  const TimedPairs t = r.run(5, {}, Mute());
  EXPECT_FALSE(t.machine.known());
  EXPECT_FALSE(t.machine.busy);
  EXPECT_EQ(t.machine.runs, 5);
}

}  // namespace
}  // namespace specdec::deploy
