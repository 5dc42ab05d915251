// Acceptance statistics: the same counts and the same arithmetic in the step, the gate, the server and the monitor.
// Words and definitions: docs/contract.md (steps, drafted, accepted, emitted, reached_i, accepted_i, overlap_i).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace specdec {

// Sums over verification steps of one sequence, request or process. Positions count from 0.
struct AcceptanceCounts {
  int64_t steps = 0;        // verification passes with at least one drafted token
  int64_t plain_steps = 0;  // K = 0 steps, counted apart
  int64_t drafted = 0;
  int64_t accepted = 0;                // before the cut by EOS, stop or max_tokens
  int64_t emitted = 0;                 // after the cut
  std::vector<int64_t> drafted_at;     // steps that drafted position i
  std::vector<int64_t> reached_at;     // … and accepted all before it
  std::vector<int64_t> accepted_at;    // … and it too
  std::vector<double> overlap_sum_at;  // Σ over reached of Σ_x min(p, q)

  // One step that drafted `drafted` tokens, accepted the first `accepted`; overlaps[i] = Σ_x min(p_i, q_i) for every
  // reached position i (accepted + 1 values, or `drafted` if all were accepted). drafted = 0 counts a plain step.
  // `emitted` is left to the caller, who knows the cut. Throws Error(kInternal) if the numbers contradict each other.
  void add_step(int64_t drafted_tokens, int64_t accepted_tokens, const std::vector<double>& overlaps);
  void add(const AcceptanceCounts& other);

  int64_t reached() const;             // Σ reached_i
  double overlap_sum() const;          // Σ overlap_sum_i
  double conditional(size_t i) const;  // accepted_i / reached_i; 0 when never reached
  double marginal(size_t i) const;     // accepted_i / drafted_i
  double overlap(size_t i) const;      // overlap_sum_i / reached_i
  double draft_efficiency() const;     // accepted / drafted
  double length() const;               // tau = 1 + accepted / steps; 1 without steps
};

// Adds by position; the sum becomes as wide as the wider.
template <class T>
void add_to(std::vector<T>& sum, const std::vector<T>& other) {
  if (sum.size() < other.size()) sum.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) sum[i] += other[i];
}

// tau for constant acceptance: (1 − α^{K+1}) / (1 − α) (Leviathan et al. 2023, eq. 1).
double expected_length(double alpha, int k);
// tau(K) = 1 + Σ_{k≤K} Π_{j≤k} overlap_j of K positions.
double expected_length(std::span<const double> overlaps);
// S = tau / (K·c + v).
double predicted_speedup(double tau, int k, double draft_cost, double verify_cost);

}  // namespace specdec
