// Learning rate schedule: linear warm-up, then a cosine down to a fraction of the peak. Progress through the schedule
// is the larger of steps / total_steps and elapsed time / time limit.
#pragma once

#include <cstdint>

namespace specdec::distill {

struct ScheduleOptions {
  double peak = 0;                // highest learning rate, at the end of the warm-up
  double min_ratio = 0.05;        // final rate as a fraction of the peak
  double warmup_ratio = 0.03;     // length of the warm-up as a fraction of the run
  int64_t total_steps = 0;        // 0 = only the time limit counts
  double time_limit_seconds = 0;  // 0 = no limit
  int64_t expected_steps = 0;     // estimated number of steps within the time limit; 0 = not known
};

// Under a time limit, warm-up takes at least this many steps, because the first Adam updates are the largest. If a
// tenth of the expected steps is less, that tenth is the minimum instead, so that the learning rate still reaches its
// peak.
inline constexpr int64_t kMinWarmupSteps = 10;

// Returns the rate of update number `step` (from 0). `elapsed_seconds` is used only with a time limit.
double learning_rate(const ScheduleOptions& options, int64_t step, double elapsed_seconds);

}  // namespace specdec::distill
