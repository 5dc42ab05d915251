#include "distill/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace specdec::distill {

double learning_rate(const ScheduleOptions& o, int64_t step, double elapsed_seconds) {
  double progress = 0, warm = 1;  // of the run; of the warm-up
  const double at = static_cast<double>(step);
  if (o.total_steps > 0) {
    const double total = static_cast<double>(o.total_steps);
    const double warmup_steps = std::max(1.0, std::ceil(o.warmup_ratio * total));
    warm = (at + 1) / warmup_steps;
    progress = total > warmup_steps ? (at - warmup_steps) / (total - warmup_steps) : 1;
  } else if (o.time_limit_seconds > 0) {
    const double warmup_seconds = o.warmup_ratio * o.time_limit_seconds;
    warm = std::min((at + 1) / static_cast<double>(kMinWarmupSteps), warmup_seconds > 0 ? elapsed_seconds / warmup_seconds : 1.0);
    // The first step would have rate 0 by time; a first small one costs nothing.
    warm = std::max(warm, 1.0 / static_cast<double>(kMinWarmupSteps) / 10);
    progress = (elapsed_seconds - warmup_seconds) / std::max(1e-9, o.time_limit_seconds - warmup_seconds);
  }
  progress = std::clamp(progress, 0.0, 1.0);
  const double cosine = o.min_ratio + (1 - o.min_ratio) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  return o.peak * std::min(1.0, warm) * cosine;
}

double default_learning_rate(const char* draft_kind, int64_t hidden_size) {
  const double base = std::string(draft_kind) == "model" ? 2e-3 : 2e-3;
  return base * std::min(1.0, 64.0 / static_cast<double>(hidden_size));
}

}  // namespace specdec::distill
