// Predicts how much faster the target answers with a draft, from what the draft costs and how much of what it drafts is
// accepted. Both are measured before the draft is served (`validate`), or even before it is trained in full
// (`distill --forecast`).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/acceptance.h"

namespace specdec {

// Returns the measured overlaps of the first K positions. Positions never reached take the overlap of the last position
// that was reached.
std::vector<double> overlaps_up_to(const AcceptanceCounts& counts, int k);
// Returns tau(K) = 1 + Σ_{i<=K} Π_{j<=i} overlap_j of these overlaps. Exact for token verification, a lower bound for
// block verification.
double predicted_length(const AcceptanceCounts& counts, int k);

// The figures of one draft at batch 1. Costs are in units of a plain step of the target.
struct DraftSpeed {
  double plain_seconds = 0;           // of a plain step, which gives one token
  double draft_cost = 0;              // c: time to draft one token
  std::map<int, double> verify_cost;  // K → v: the rest of a step that drafts K tokens
  // What roll-outs with the largest K of verify_cost counted, one element for each conversation.
  std::vector<AcceptanceCounts> conversations;
};

// The best K, the tokens of a step with it, and the speed-up tau(K) / (K·c + v) that follows.
struct SpeedPrediction {
  int k = 0;  // 0: no costs or no roll-outs were measured
  double length = 1, speedup = 0;
};

// Predicts the speed-up with the K whose prediction is highest. `shift` moves the overlap of every position on the
// scale of log-odds: it says how much better or worse than in the roll-outs the draft will be.
SpeedPrediction predict_speed(const DraftSpeed& draft, double shift = 0);
// Predicts the speed-up with this K. Throws Error(kInternal) if the cost of this K was not measured.
SpeedPrediction predict_speed_with(const DraftSpeed& draft, int k, double shift);

// Returns log(p / (1 − p)), with p kept within [1e-6, 1 − 1e-6].
double log_odds(double p);

// Returns after how many answered tokens a training of `seconds` is paid back by the time that the speed-up saves;
// infinity if it never is.
double tokens_to_pay_back(double seconds, double plain_seconds, double speedup);

}  // namespace specdec
