// Predicts how much faster the target answers with a draft, from the draft's cost and its acceptance. Both are measured
// before the draft is served (`validate`), or even before it is fully trained (`distill --forecast`).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/acceptance.h"

namespace specdec {

// Returns the measured overlaps of the first K positions. A position that no step reached gets the overlap of the last
// position that was reached.
std::vector<double> overlaps_up_to(const AcceptanceCounts& counts, int k);
// Returns the expected number of tokens per step, tau(K) = 1 + Σ_{i<=K} Π_{j<=i} overlap_j, where overlap_j is an
// element of overlaps_up_to(). The value is exact for token verification and a lower bound for block verification.
double predicted_length(const AcceptanceCounts& counts, int k);

// The figures of one draft at batch 1. Costs are in units of a plain step of the target.
struct DraftSpeed {
  double plain_seconds = 0;  // duration of one plain step, which yields one token
  double draft_cost = 0;     // c: cost of drafting one token, in plain steps
  // K → v: the cost of a step that drafts K tokens, without the drafting itself, in plain steps.
  std::map<int, double> verify_cost;
  // Acceptance counted while decoding with K = the largest key of verify_cost; one element per conversation.
  std::vector<AcceptanceCounts> conversations;
};

// The best K, the expected number of tokens per step with this K, and the resulting speed-up tau(K) / (K·c + v).
struct SpeedPrediction {
  int k = 0;  // draft tokens per step; 0 if neither costs nor acceptance were measured
  double length = 1, speedup = 0;
};

// Predicts the speed-up for each K that has a measured cost, and returns the highest. `shift` is added to the log-odds
// of every overlap: above 0 if the draft is expected to be better than when its acceptance was measured, below 0 if
// worse.
SpeedPrediction predict_speed(const DraftSpeed& draft, double shift = 0);
// Predicts the speed-up with this K. Throws Error(kInternal) if the cost of this K was not measured.
SpeedPrediction predict_speed_with(const DraftSpeed& draft, int k, double shift);

// Returns log(p / (1 − p)), with p kept within [1e-6, 1 − 1e-6].
double log_odds(double p);

// Returns the number of generated tokens after which the time that the speed-up has saved equals the training time
// `seconds`; infinity if the speed-up saves nothing.
double tokens_to_pay_back(double seconds, double plain_seconds, double speedup);

}  // namespace specdec
