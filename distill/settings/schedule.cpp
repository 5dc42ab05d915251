#include "distill/settings/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace specdec::distill {

double learning_rate(const ScheduleOptions& o, int64_t step, double elapsed_seconds) {
  double progress = 0, warm = 1;  // progress of the cosine decay in [0, 1]; warm-up factor in (0, 1]
  const double at = static_cast<double>(step), total = static_cast<double>(o.total_steps), limit = o.time_limit_seconds;
  if (o.total_steps > 0) {
    const double warmup = std::max(1.0, std::ceil(o.warmup_ratio * total));
    warm = (at + 1) / warmup;
    progress = total > warmup ? (at - warmup) / (total - warmup) : 1;
  }
  if (limit > 0) {
    const double warmup = o.warmup_ratio * limit;
    progress = std::max(progress, limit > warmup ? (elapsed_seconds - warmup) / (limit - warmup) : 1);
    if (o.total_steps == 0) {
      // At the first update no time has elapsed, so the learning rate would be 0 if only elapsed time counted.
      // Therefore the warm-up factor is at least 0.1 / `steps`.
      const int64_t steps =
          o.expected_steps > 0 ? std::clamp<int64_t>(o.expected_steps / 10, 1, kMinWarmupSteps) : kMinWarmupSteps;
      const auto least = static_cast<double>(steps);
      warm = std::max(0.1 / least, std::min((at + 1) / least, warmup > 0 ? elapsed_seconds / warmup : 1.0));
    }
  }
  progress = std::clamp(progress, 0.0, 1.0);
  const double cosine = o.min_ratio + (1 - o.min_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return o.peak * std::min(1.0, warm) * cosine;
}

}  // namespace specdec::distill
