#include "base/acceptance.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace specdec {

namespace {

template <class T>
double ratio(const std::vector<int64_t>& below, const std::vector<T>& above, size_t i) {
  if (i >= below.size() || i >= above.size() || below[i] == 0) return 0;
  return static_cast<double>(above[i]) / static_cast<double>(below[i]);
}

}  // namespace

void AcceptanceCounts::add_step(int64_t drafted_tokens, int64_t accepted_tokens, const std::vector<double>& overlaps) {
  if (drafted_tokens < 0 || accepted_tokens < 0 || accepted_tokens > drafted_tokens ||
      static_cast<int64_t>(overlaps.size()) != std::min(accepted_tokens + 1, drafted_tokens))
    throw Error(ErrorKind::kInternal, "a step cannot accept " + std::to_string(accepted_tokens) + " of " +
                                          std::to_string(drafted_tokens) + " draft tokens with " +
                                          std::to_string(overlaps.size()) + " overlaps");
  if (drafted_tokens == 0) {
    ++plain_steps;
    return;
  }
  const size_t width = static_cast<size_t>(drafted_tokens);
  if (drafted_at.size() < width) {
    drafted_at.resize(width);
    reached_at.resize(width);
    accepted_at.resize(width);
    overlap_sum_at.resize(width);
  }
  ++steps;
  drafted += drafted_tokens;
  accepted += accepted_tokens;
  for (size_t i = 0; i < width; ++i) ++drafted_at[i];
  for (size_t i = 0; i < static_cast<size_t>(accepted_tokens); ++i) ++accepted_at[i];
  for (size_t i = 0; i < overlaps.size(); ++i) {
    ++reached_at[i];
    overlap_sum_at[i] += overlaps[i];
  }
}

void AcceptanceCounts::add(const AcceptanceCounts& other) {
  steps += other.steps;
  plain_steps += other.plain_steps;
  drafted += other.drafted;
  accepted += other.accepted;
  emitted += other.emitted;
  add_to(drafted_at, other.drafted_at);
  add_to(reached_at, other.reached_at);
  add_to(accepted_at, other.accepted_at);
  add_to(overlap_sum_at, other.overlap_sum_at);
}

int64_t AcceptanceCounts::reached() const { return std::accumulate(reached_at.begin(), reached_at.end(), int64_t{0}); }
double AcceptanceCounts::overlap_sum() const {
  return std::accumulate(overlap_sum_at.begin(), overlap_sum_at.end(), 0.0);
}
double AcceptanceCounts::conditional(size_t i) const { return ratio(reached_at, accepted_at, i); }
double AcceptanceCounts::marginal(size_t i) const { return ratio(drafted_at, accepted_at, i); }
double AcceptanceCounts::overlap(size_t i) const { return ratio(reached_at, overlap_sum_at, i); }
double AcceptanceCounts::draft_efficiency() const {
  return drafted ? static_cast<double>(accepted) / static_cast<double>(drafted) : 0;
}
double AcceptanceCounts::length() const {
  return steps ? 1 + static_cast<double>(accepted) / static_cast<double>(steps) : 1;
}

// Adds up the geometric sum 1 + α + … + α^K, because the closed form divides by zero at α = 1.
double expected_length(double alpha, int k) {
  double sum = 1, power = 1;
  for (int i = 0; i < k; ++i) sum += power *= alpha;
  return sum;
}

double expected_length(std::span<const double> overlaps) {
  double length = 1, reach = 1;
  for (const double overlap : overlaps) length += reach *= overlap;
  return length;
}

double predicted_speedup(double tau, int k, double draft_cost, double verify_cost) {
  return tau / (k * draft_cost + verify_cost);
}

}  // namespace specdec
