// Learning rate schedule: linear warm-up, then a cosine down to a fraction of the peak. Progress follows the steps or
// the elapsed time of the run, whichever is nearer to its limit.
#pragma once

#include <cstdint>

namespace specdec::distill {

struct ScheduleOptions {
  double peak = 0;                // learning rate
  double min_ratio = 0.05;        // final rate as a fraction of the peak
  double warmup_ratio = 0.03;     // length of the warm-up as a fraction of the run
  int64_t total_steps = 0;        // 0 = only the time limit counts
  double time_limit_seconds = 0;  // 0 = no limit
  int64_t expected_steps = 0;     // that the time limit is worth; 0 = not known
};

// Warm-up by time takes at least this many steps, because the first Adam updates are the largest, or a tenth of the
// expected ones if that is less: a run of few steps would otherwise never reach its learning rate.
inline constexpr int64_t kMinWarmupSteps = 10;

// Returns the rate of update number `step` (from 0). `elapsed_seconds` is used only with a time limit.
double learning_rate(const ScheduleOptions& options, int64_t step, double elapsed_seconds);

}  // namespace specdec::distill
