#include "monitor/facts/payback.h"

#include <algorithm>

#include "base/acceptance.h"
#include "base/format.h"

namespace specdec::monitor {

namespace {

// Returns the predicted speed-up at batch size 1 for K = 1, 2, …. The expected length tau is computed from the
// roll-outs' overlaps plus `change`.
std::vector<double> predictions(const ValidationReport& report, double change) {
  std::vector<double> speedups, overlaps;
  for (size_t i = 0; i < report.rollout.counts.reached_at.size(); ++i) {
    overlaps.push_back(std::clamp(report.rollout.counts.overlap(i) + change, 0.0, 1.0));
    const int k = static_cast<int>(i) + 1;
    double v = report.verify_cost.contains(1) ? report.verify_cost.at(1) : 1;
    const auto batch = report.verify_cost_table.find(1);
    if (batch != report.verify_cost_table.end() && batch->second.contains(k)) v = batch->second.at(k);
    speedups.push_back(predicted_speedup(expected_length(overlaps), k, report.draft_cost, v));
  }
  return speedups;
}

}  // namespace

double speedup_at(const ValidationReport& report, double change) {
  if (!report.has_speed || report.speedup.n == 0 || report.draft_cost <= 0) return 0;
  const std::vector<double> then = predictions(report, 0), now = predictions(report, change);
  if (then.empty()) return 0;
  const auto k = static_cast<size_t>(std::max(report.best_k, 0));
  const double promised = k >= 1 && k <= then.size() ? then[k - 1] : *std::max_element(then.begin(), then.end());
  return report.speedup.value * *std::max_element(now.begin(), now.end()) / promised;
}

Payback payback(const Policy& policy, double requests_per_day, double speedup_now, double speedup_after) {
  if (policy.gpu_hours <= 0) return {true, 0, "the cost was not asked for (--redistil-gpu-hours)"};
  if (speedup_now <= 0 || speedup_after <= 0)
    return {false, 0, "the pay-back is unknown: the package's report has no measured speed-up"};
  const double seconds_now = 1 / policy.tokens_per_second, seconds_after = seconds_now * speedup_now / speedup_after;
  const double tokens = requests_per_day * policy.tokens_per_request * policy.horizon_days;
  Payback result;
  result.gain_gpu_hours = tokens * (seconds_now - seconds_after) * policy.gpus / 3600;
  result.pays = result.gain_gpu_hours >= policy.gpu_hours;
  result.text = format("%.1f GPU hours are saved in %.0f days for %.1f spent (speed-up %.2f now, %.2f expected)",
                       result.gain_gpu_hours, policy.horizon_days, policy.gpu_hours, speedup_now, speedup_after);
  return result;
}

}  // namespace specdec::monitor
