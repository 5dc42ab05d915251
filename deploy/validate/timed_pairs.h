// The timing behind every measured speed-up, of the gate and of the bench: each run goes with and without the draft
// side by side (timed_run.h), runs during which other processes took the CPUs away are repeated, and so are runs that
// disagree with the others.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/schema/validation_report.h"
#include "deploy/validate/cpu_meter.h"
#include "deploy/validate/timed_run.h"

namespace specdec::deploy {

struct PairFigures {
  GroupFigures normal, speculative;
  double seconds() const { return normal.seconds + speculative.seconds; }
};

struct PairsOptions {
  int threads = 0;              // of this process; 0: as many as there are CPUs
  int repeats = 1;              // of every run, of which the one with the least seconds counts
  double most_taken = 0.10;     // share of its CPU (MachineUse::taken) beyond which a window is disturbed
  double window_seconds = 0.5;  // of runs between two looks at the meter, whose ticks are 10 ms
  // of the cost of a speculative step in plain steps, against the median of all runs; 0: not compared
  double tolerance = 0;
  int retries = 2;               // of a run that disagrees
  double patience_seconds = 10;  // for which disturbed runs are repeated at least
};

struct TimedPairs {
  std::vector<PairFigures> runs;  // [count]; of a run that was never left alone, the one that was disturbed
  std::vector<bool> clean;        // [count] it was left alone
  MachineUse machine;
};

// Runs pair(0) … pair(count − 1), each the same work whenever it is asked for. Disturbed ones come again after all
// others, until as many were disturbed as there are runs and the patience is at its end; the machine is `busy` where
// even so fewer than half of them were left alone, or fewer than four where there are more. Disagreeing ones come again
// `retries` times, and the one with the least seconds counts. What is repeated depends on the meter and on the cost of
// a step in both directions, never on who wins: repeating favours neither side.
TimedPairs time_pairs(size_t count, const PairsOptions& options, const std::function<PairFigures(size_t)>& pair,
                      const Clock& clock, const CpuMeter& meter);

// How often a run is repeated, the shortest counting: 3 times where plain decoding takes less than a quarter of a
// second, since one time slice lost to another process would be most of it, else once.
int repeats_of(double plain_seconds);

}  // namespace specdec::deploy
