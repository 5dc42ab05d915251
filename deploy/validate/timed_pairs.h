// Times the speed-ups of the gate and of bench. Each run is made with and without the draft, side by side
// (timed_run.h). A run is repeated if other processes took CPU time during it, or if its cost per step differs too much
// from that of the other runs.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/schema/validation_report.h"
#include "deploy/validate/cpu_meter.h"
#include "deploy/validate/timed_run.h"

namespace specdec::deploy {

// Instruments of a timing: the clock, and the meter of the CPU time that other processes take.
struct Instruments {
  const Clock& clock;
  const CpuMeter& meter;
};

struct PairFigures {
  GroupFigures normal, speculative;
  double seconds() const { return normal.seconds + speculative.seconds; }
};

struct PairsOptions {
  int threads = 0;              // CPU threads of this process; 0: one per CPU
  int repeats = 1;              // each run is made this often, and the fastest is taken
  double most_taken = 0.10;     // largest share of CPU that others may take in an undisturbed window
  double window_seconds = 0.5;  // least length of a window; must be long compared with the meter's ticks of 10 ms
  // A run is repeated if |log(its step cost / median step cost)| is larger than this; 0: no limit. The step cost is the
  // time of a speculative step in units of plain steps.
  double tolerance = 0;
  int retries = 2;               // repetitions of a run whose step cost exceeds the tolerance
  double patience_seconds = 10;  // disturbed runs are repeated for at least this many seconds from the start
};

struct TimedPairs {
  std::vector<PairFigures> runs;  // [count]; if a pair was never undisturbed: its first run
  std::vector<bool> clean;        // [count] whether the run was undisturbed
  MachineUse machine;
};

// Calls pair(0) … pair(count − 1); pair(i) must always do the same work.
// - A run during which other processes took CPU time (a disturbed run) is repeated after all other runs. Repeating
//   stops when patience_seconds have passed and at least `count` disturbed runs, repetitions included, were timed. If
//   then fewer than half of the runs, or fewer than min(4, count), are undisturbed, the machine is `busy`.
// - A run whose step cost exceeds the tolerance is repeated up to `retries` times, and the fastest repetition is taken.
// Whether a run is repeated depends on the meter and on how far its step cost is from the median, in either direction.
// It does not depend on whether speculation is faster, so repeating does not bias the speed-up.
TimedPairs time_pairs(size_t count, const PairsOptions& options, const std::function<PairFigures(size_t)>& pair,
                      const Instruments& instruments);

// Returns how often each run is made; the fastest is taken. Returns 3 if plain decoding takes less than a quarter of a
// second, because a single time slice lost to another process would distort so short a run. Otherwise returns 1.
int repeats_of(double plain_seconds);

}  // namespace specdec::deploy
