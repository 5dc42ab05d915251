#include "distill/settings/defaults.h"

#include <algorithm>
#include <cmath>

namespace specdec::distill {

double default_learning_rate(int64_t hidden_size, bool trained_before) {
  return (trained_before ? 4e-3 : 1.2e-2) * std::min(1.0, 64.0 / static_cast<double>(hidden_size));
}

double tokens_in_run(const RunLimits& limits, const StepCost& cost, int64_t batch_tokens) {
  const auto batch = static_cast<double>(batch_tokens);
  double tokens = std::numeric_limits<double>::infinity();
  if (limits.steps > 0) tokens = static_cast<double>(limits.steps) * batch;
  if (limits.tokens > 0) tokens = std::min(tokens, limits.tokens);
  if (limits.seconds > 0) {
    const double known = cost.fixed / batch + cost.per_token, unknown = known + cost.first_answer;
    // Seconds of the first epoch, in which nothing is cached.
    const double first_epoch = limits.training_tokens * unknown;
    const double in_time = limits.seconds <= first_epoch
                               ? limits.seconds / unknown
                               : limits.training_tokens + (limits.seconds - first_epoch) / known;
    tokens = std::min(tokens, in_time);
  }
  return tokens;
}

int64_t default_step_tokens(const RunLimits& limits, const StepCost& cost) {
  int64_t chosen = kLeastStepTokens;
  const bool open_end = limits.seconds <= 0 && limits.tokens <= 0;
  if (open_end) return kStepTokensOfGivenSteps;
  for (int64_t batch = kLeastStepTokens; batch <= kMostStepTokens; batch *= 2)
    if (tokens_in_run(limits, cost, batch) >= static_cast<double>(kWantedSteps * batch)) chosen = batch;
  return chosen;
}

BatchShape batch_shape(int64_t step_tokens, int64_t vocab) {
  constexpr int64_t kLogits = int64_t{1} << 26;
  int64_t batch = step_tokens, times = 1;
  while (batch > kLeastStepTokens && batch * vocab > kLogits) batch /= 2, times *= 2;
  return {batch, times};
}

double flop_of_run(const RunLimits& limits, double flop_per_second, double target_flop, double draft_flop) {
  const double step = target_flop + 3 * draft_flop;
  double flop = std::numeric_limits<double>::infinity();
  if (limits.steps > 0)
    flop = static_cast<double>(limits.steps) *
           static_cast<double>(limits.step_tokens > 0 ? limits.step_tokens : kStepTokensOfGivenSteps) * step;
  if (limits.tokens > 0) flop = std::min(flop, limits.tokens * step);
  if (limits.seconds > 0) flop = std::min(flop, limits.seconds * flop_per_second);
  return flop;
}

int64_t evaluations_for(double run_flop, double evaluation_flop) {
  const double share = kMostEvaluations * kSelectionShare * std::max(run_flop, kMostEvaluations * kFreeFlop) /
                       std::max(1.0, evaluation_flop);
  return share >= kMostEvaluations ? kMostEvaluations : std::max<int64_t>(2, static_cast<int64_t>(share));
}

int64_t rows_for(double flop, double row_flop, int64_t least, double free) {
  const double rows = std::max(flop, free) / std::max(1.0, row_flop);
  return std::max(least, rows >= 1e15 ? int64_t{1} << 50 : static_cast<int64_t>(rows));
}

}  // namespace specdec::distill
