#include "base/draft_speed.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"

namespace specdec {

std::vector<double> overlaps_up_to(const AcceptanceCounts& counts, int k) {
  std::vector<double> overlaps;
  for (size_t at = 0; at < static_cast<size_t>(std::max(k, 0)); ++at)
    overlaps.push_back(at < counts.reached_at.size() && counts.reached_at[at] > 0 ? counts.overlap(at)
                       : at > 0                                                   ? overlaps.back()
                                                                                  : 0);
  return overlaps;
}

double predicted_length(const AcceptanceCounts& counts, int k) { return expected_length(overlaps_up_to(counts, k)); }

double log_odds(double p) {
  const double inside = std::clamp(p, 1e-6, 1 - 1e-6);
  return std::log(inside / (1 - inside));
}

SpeedPrediction predict_speed_with(const DraftSpeed& draft, int k, double shift) {
  const auto v = draft.verify_cost.find(k);
  if (v == draft.verify_cost.end())
    throw Error(ErrorKind::kInternal, "no cost was measured for K = " + std::to_string(k));
  AcceptanceCounts counts;
  for (const AcceptanceCounts& conversation : draft.conversations) counts.add(conversation);
  std::vector<double> overlaps = overlaps_up_to(counts, k);
  if (shift != 0)
    for (double& overlap : overlaps) overlap = 1 / (1 + std::exp(-(log_odds(overlap) + shift)));
  const double length = expected_length(overlaps);
  return {k, length, predicted_speedup(length, k, draft.draft_cost, v->second)};
}

SpeedPrediction predict_speed(const DraftSpeed& draft, double shift) {
  SpeedPrediction best;
  for (const auto& [k, v] : draft.verify_cost) {
    if (k < 1 || draft.conversations.empty()) continue;
    const SpeedPrediction one = predict_speed_with(draft, k, shift);
    if (one.speedup > best.speedup) best = one;
  }
  return best;
}

double tokens_to_pay_back(double seconds, double plain_seconds, double speedup) {
  const double saved = plain_seconds * (1 - 1 / speedup);
  return speedup > 1 && saved > 0 ? seconds / saved : std::numeric_limits<double>::infinity();
}

}  // namespace specdec
