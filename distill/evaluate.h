// Teacher-forced measurement on held-out rows (docs/contract.md, "acceptance"): Σ min(p, q) at every answer position,
// mean within a request, then over requests; without a target, the cross entropy of the text.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "base/schema/shard_index.h"
#include "base/statistics.h"
#include "base/verdict.h"
#include "distill/teacher.h"
#include "engine/model/weights.h"

namespace specdec::distill {

struct RowScore {
  double acceptance = 0;     // mean over the row's answer positions; NaN without a target
  double agreement = 0;      // share of positions where both arg maxes are the same token; NaN without a target
  double cross_entropy = 0;  // mean of −log q(next token), nats
  int64_t tokens = 0;        // answer positions
};

struct Evaluation {
  std::vector<RowScore> rows;                                             // one a row, in the order given
  double acceptance = 0;                                                  // over requests
  double acceptance_tokens = 0, greedy_agreement = 0, cross_entropy = 0;  // over tokens
  int64_t tokens = 0;
};

inline constexpr int64_t kEvaluationTokens = 2048;  // padded tokens of a pass
// Called between stretches of work with the share of the positions that is done; what it throws ends the evaluation.
using EvaluationStep = std::function<void(double share)>;

// p and q at `temperature` > 0. `target` may be null. Passes of at most `batch_tokens` padded tokens; fp32 arithmetic.
// Of a large vocabulary only a few rows of logits exist at a time.
Evaluation evaluate(const model::Decoder& draft, const model::Decoder* target, const std::vector<TokenRow>& rows,
                    double temperature, int64_t batch_tokens, const EvaluationStep& step = {});

// The same against the answers of a teacher made for these rows, which keeps them between calls.
Evaluation evaluate(const model::Decoder& draft, Teacher& teacher, const std::vector<TokenRow>& rows,
                    double temperature, int64_t batch_tokens, const EvaluationStep& step = {});

// Held-out rows in two halves that share no conversation: one to choose the checkpoint with, one to judge the chosen
// by. By hash of the conversation, alternating in hash order: the halves differ by at most one conversation.
struct HeldOut {
  std::vector<TokenRow> selection, verdict;
  int64_t selection_conversations = 0, verdict_conversations = 0;
};
HeldOut split_held_out(std::vector<TokenRow> rows, size_t max_selection_rows, size_t max_verdict_rows);

// A measured checkpoint. Scores: acceptance, or minus the cross entropy where there is no target: higher is better.
struct Measured {
  int64_t step = 0;
  double score = 0;
  double loss = 0;  // of training, recorded beside it and never asked
};
// Steps from best to worst: by score, the earlier of equals first; NaN scores are left out.
std::vector<int64_t> rank_checkpoints(const std::vector<Measured>& measured);

struct Judgement {
  Verdict verdict = Verdict::kInconclusive;  // or kImproved, kNoSignificantGain
  Estimate before, after;  // acceptance with bounded_mean over conversations, or cross entropy with a bootstrap
  Estimate difference;     // paired, better is positive; 95 % bootstrap over conversations
};
inline constexpr int64_t kMinVerdictConversations = 8;

// Compares two evaluations of the same `rows`. Improved: the lower end of the difference is above zero. Inconclusive:
// fewer than kMinVerdictConversations. `by_acceptance` false judges cross entropy.
Judgement judge(const std::vector<TokenRow>& rows, const Evaluation& before, const Evaluation& after,
                bool by_acceptance);

}  // namespace specdec::distill
