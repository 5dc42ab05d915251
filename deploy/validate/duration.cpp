#include "deploy/validate/duration.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"
#include "deploy/validate/lossless.h"
#include "deploy/validate/speed.h"

namespace specdec::deploy {

namespace {

constexpr double kSafety = 1.3;
constexpr int64_t kCostBatches = 3, kLeastRepetitions = 3, kGreedyPrompts = 32;

std::string minutes(double seconds) {
  return seconds < 90 ? format("%.0f s", std::ceil(seconds)) : format("%.0f min", std::ceil(seconds / 60));
}

}  // namespace

double RolloutCost::token() const { return std::max(0.0, more_tokens - one_token) / static_cast<double>(kTimedTokens); }

double RolloutCost::seconds(int64_t count, int64_t tokens) const {
  const double batches = static_cast<double>(count) / static_cast<double>(std::max<int64_t>(1, requests));
  return batches * (one_token + token() * static_cast<double>(tokens - 1));
}

std::string ExpectedTime::text() const {
  std::string parts;
  const auto add = [&](double seconds, const char* what) {
    if (seconds > 0) parts += (parts.empty() ? "" : ", ") + std::string(what) + " " + minutes(seconds);
  };
  add(rollout, "roll-outs"), add(acceptance, "acceptance"), add(speed, "speed"), add(lossless, "exactness");
  return "this takes about " + minutes(total()) + " here (" + parts +
         "); smaller --max-requests, --rollout-requests, --rollout-tokens and --speed-prompts take less";
}

ExpectedTime expected_time(const RolloutCost& cost, const ValidateOptions& o, const ValidationWork& work) {
  ExpectedTime out;
  const int64_t rolled_out = o.rollout_requests > 0 ? std::min(o.rollout_requests, work.rows) : work.rows;
  if (work.answers_anew)
    out.rollout = cost.seconds(work.rows, o.rollout_tokens);
  else if (work.rollout || work.speed)
    out.rollout = cost.seconds(rolled_out, o.rollout_tokens);
  // Scoring passes prompts and answers once through the target and once through the draft.
  if (work.acceptance) out.acceptance = 2 * cost.seconds(work.rows, 1);
  if (work.speed) {
    const CostOptions costs;
    const int max_k = std::max(o.speculation.k, o.speculation.max_k);
    const double repetition = cost.seconds(cost.requests, max_k + 3);
    out.speed =
        static_cast<double>(kCostBatches) *
        std::max(static_cast<double>(kLeastRepetitions) * repetition,
                 std::min(static_cast<double>(costs.repetitions) * repetition, costs.seconds_per_batch + repetition));
    // Each prompt is answered with and without the draft; a short answer is timed three times.
    const double answer = cost.seconds(1, 1) + cost.token() * static_cast<double>(o.speed_tokens - 1);
    const double repeats = answer < 0.25 ? 3 : 1;
    out.speed += 2 * answer * (static_cast<double>(o.speed_prompts * SpeedupOptions{}.rounds) * repeats + 2);
  }
  if (work.lossless)
    out.lossless = 2 * cost.seconds(std::min(kGreedyPrompts, work.rows), o.rollout_tokens) +
                   std::min(SampledOptions{}.seconds, cost.seconds(SampledOptions{}.runs, 4)) +
                   4 * cost.seconds(cost.requests, 4);
  for (double* part : {&out.acceptance, &out.rollout, &out.speed, &out.lossless}) *part *= kSafety;
  return out;
}

}  // namespace specdec::deploy
