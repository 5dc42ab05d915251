// Acceptance statistics. Distillation, the gate, the server and the monitor share these counts and formulas.
// docs/glossary.md defines the words (steps, drafted, accepted, emitted, reached_i, accepted_i, overlap_i).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace specdec {

// Holds sums over the verification steps of one sequence, request or process. Positions count from 0.
struct AcceptanceCounts {
  int64_t steps = 0;        // verification passes with at least one drafted token
  int64_t plain_steps = 0;  // steps without a drafted token (K = 0), not counted in `steps`
  int64_t drafted = 0;
  int64_t accepted = 0;                // accepted draft tokens, before the cut by EOS, a stop string or max_tokens
  int64_t emitted = 0;                 // tokens added to the text, after the cut by EOS, a stop string or max_tokens
  std::vector<int64_t> drafted_at;     // steps that drafted position i
  std::vector<int64_t> reached_at;     // steps that drafted position i and accepted all positions before it
  std::vector<int64_t> accepted_at;    // reached steps that accepted position i
  std::vector<double> overlap_sum_at;  // sum of the overlaps Σ_x min(p_i, q_i) of the reached steps

  // Adds one step that drafted `drafted_tokens` tokens and accepted the first `accepted_tokens`. `overlaps` has one
  // value Σ_x min(p_i, q_i) for each reached position i: for all accepted positions and, if a token was rejected, for
  // its position. A step that drafted nothing counts as plain. The caller sets `emitted`, because only the caller knows
  // where EOS, a stop string or max_tokens cut the answer. Throws Error(kInternal) if the numbers contradict each
  // other.
  void add_step(int64_t drafted_tokens, int64_t accepted_tokens, const std::vector<double>& overlaps);
  void add(const AcceptanceCounts& other);

  int64_t reached() const;             // Σ_i reached_i
  double overlap_sum() const;          // Σ_i overlap_sum_i
  double conditional(size_t i) const;  // accepted_i / reached_i; 0 if never reached
  double marginal(size_t i) const;     // accepted_i / drafted_i
  double overlap(size_t i) const;      // overlap_sum_i / reached_i
  double draft_efficiency() const;     // accepted / drafted
  double length() const;               // tau = 1 + accepted / steps; 1 without steps
};

// Adds `other` to `sum` element by element; extends `sum` if it is shorter.
template <class T>
void add_to(std::vector<T>& sum, const std::vector<T>& other) {
  if (sum.size() < other.size()) sum.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) sum[i] += other[i];
}

// Returns tau for constant acceptance: (1 − α^{K+1}) / (1 − α) (Leviathan et al. 2023, eq. 1).
double expected_length(double alpha, int k);
// Returns tau = 1 + Σ_{k≤K} Π_{j≤k} overlap_j for the overlaps of K positions.
double expected_length(std::span<const double> overlaps);
// Returns the predicted speed-up S = tau / (K·c + v) over plain decoding. The costs c = draft_cost (one draft token)
// and v = verify_cost (a step without its drafting) are in units of one plain step.
double predicted_speedup(double tau, int k, double draft_cost, double verify_cost);

}  // namespace specdec
