// Learning rate: linear warm-up, then a cosine down to a fraction of the peak, along the steps of the run or its
// elapsed time, whichever limit is nearer.
#pragma once

#include <cstdint>

namespace specdec::distill {

struct ScheduleOptions {
  double peak = 0;                // learning rate
  double min_ratio = 0.05;        // of the peak, at the end
  double warmup_ratio = 0.03;     // of the run
  int64_t total_steps = 0;        // 0: the time limit rules alone
  double time_limit_seconds = 0;  // 0: none
};

// Warm-up by time never takes fewer than this many steps: the first Adam updates are the largest.
inline constexpr int64_t kMinWarmupSteps = 10;

// Rate of the update numbered `step` (from 0). `elapsed_seconds` is read only where there is a time limit.
double learning_rate(const ScheduleOptions& options, int64_t step, double elapsed_seconds);

}  // namespace specdec::distill
