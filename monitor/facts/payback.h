// Computes whether a redistillation pays. A redistillation costs GPU hours once, and saves GPU hours on every token
// that is generated within the horizon (Policy::horizon_days):
//   gain per day [GPU h] = requests/day · tokens/request · (s/token now − s/token after) · GPUs / 3600,
//   s/token now = 1 / rate now,   s/token after = s/token now · S_now / S_after
// S is the speed-up over plain decoding, S(K, B) = tau / (K·c + v) with the gate's measured costs (Leviathan et al.
// 2023, arXiv 2211.17192).
#pragma once

#include <string>

#include "base/schema/validation_report.h"
#include "monitor/facts/policy.h"

namespace specdec::monitor {

// Returns the best predicted speed-up over all K at batch size 1, with the gate's costs, if the roll-outs' overlap at
// every position changes by `change`. The prediction is multiplied by the ratio of measured to predicted speed-up at
// the time of validation, because predictions omit some costs that a measurement includes. Returns 0 if nothing was
// measured.
double speedup_at(const ValidationReport& report, double change);

struct Payback {
  bool pays = false;
  double gain_gpu_hours = 0;  // GPU hours saved within the horizon
  std::string text;           // the result in one line, for the user
};
// Compares what a redistillation saves with what it costs. If Policy::gpu_hours is 0, the user has stated no cost, and
// the result is that it pays. Pass `speedup_now` = 1 for a draft that no longer fits the target.
Payback payback(const Policy& policy, double requests_per_day, double speedup_now, double speedup_after);

}  // namespace specdec::monitor
