// Times every measured speed-up, for the gate and for bench. Each run is made with and without the draft, side by side
// (timed_run.h). Runs during which other processes took CPU time are repeated, and so are runs whose step cost
// disagrees with that of the others.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/schema/validation_report.h"
#include "deploy/validate/cpu_meter.h"
#include "deploy/validate/timed_run.h"

namespace specdec::deploy {

// Holds what a timing reads: the time, and the CPU time that other processes take meanwhile.
struct Instruments {
  const Clock& clock;
  const CpuMeter& meter;
};

struct PairFigures {
  GroupFigures normal, speculative;
  double seconds() const { return normal.seconds + speculative.seconds; }
};

struct PairsOptions {
  int threads = 0;              // of this process; 0: one per CPU
  int repeats = 1;              // how often every run is made; the fastest counts
  double most_taken = 0.10;     // largest share taken by others (MachineUse::taken) in an undisturbed window
  double window_seconds = 0.5;  // of runs between two readings of the meter, whose ticks are 10 ms
  // Largest |log| ratio between a run's step cost (a speculative step in plain steps) and the median; 0: not compared.
  double tolerance = 0;
  int retries = 2;               // for a run that disagrees
  double patience_seconds = 10;  // disturbed runs are repeated for at least this long
};

struct TimedPairs {
  std::vector<PairFigures> runs;  // [count], one per run; if every repetition was disturbed, the first
  std::vector<bool> clean;        // [count] whether the run was undisturbed
  MachineUse machine;
};

// Calls pair(0) … pair(count − 1); pair(i) must always do the same work. Disturbed runs are repeated after all others,
// until at least `count` runs were disturbed in all and patience_seconds are over. The machine is `busy` if even then
// fewer than half of the runs are undisturbed, or fewer than the smaller of four and `count`. Disagreeing runs are
// repeated up to `retries` times, and the fastest one counts. The choice of runs to repeat depends on the meter and on
// deviations of the step cost in both directions, but never on which side wins. So repeating favours neither side.
TimedPairs time_pairs(size_t count, const PairsOptions& options, const std::function<PairFigures(size_t)>& pair,
                      const Instruments& instruments);

// Returns how often a run is made; the fastest one counts. This is 3 if plain decoding takes less than a quarter of a
// second, because losing a single time slice to another process would distort so short a run, and else 1.
int repeats_of(double plain_seconds);

}  // namespace specdec::deploy
