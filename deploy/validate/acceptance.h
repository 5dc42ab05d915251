// Measures teacher-forced acceptance: one pass of each model over a row gives Σ_x min(p, q) at every answer position
// (alpha in docs/contract.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/run_options.h"
#include "base/schema/shard_index.h"
#include "base/schema/validation_report.h"
#include "deploy/validate/gate.h"
#include "engine/decode/runners/draft.h"

namespace specdec::deploy {

// Means over the measured positions of a row; tokens = 0 if it has none.
struct RowScore {
  double alpha = 0;      // Σ_x min(p, q) under `sampling`; if greedy: 1 if p and q have the same argmax, else 0
  double agreement = 0;  // 1 if the raw logits of target and draft have the same argmax, else 0
  double entropy = 0;    // entropy of the target's distribution p, in nats
  // Number of measured positions t >= 1 whose token has loss_mask 1 and lies inside the context of both models. The
  // first position is t = 2 instead if a draft has no distribution after the first token
  // (DraftScorer::first_position()).
  int64_t tokens = 0;
};

// Returns one score per draft and row: [draft][row]. All drafts are scored at the same positions, with a single pass of
// the target. All models must be on one device and have the same vocabulary. An EAGLE-3 head is scored as a drafter of
// one token: with the target's hidden states of all earlier text. Plain softmax runs in ATen on the device; top-k,
// top-p and min-p use decode::distribution() on the host, as in serving. Each model's logits take at most about 128 MiB
// at once. Throws Error(kData) for a token outside the vocabulary, and Error(kModel) for logits that are not finite.
// Throws Error(kNetwork), the kind that means "try again", if a signal stops it.
std::vector<std::vector<RowScore>> score_rows(const model::Decoder& target, std::span<const decode::DraftPtr> drafts,
                                              std::span<const TokenRow> rows, const SamplingOptions& sampling,
                                              const ProgressFn& progress = {});
std::vector<RowScore> score_rows(const model::Decoder& target, const decode::DraftPtr& draft,
                                 std::span<const TokenRow> rows, const SamplingOptions& sampling,
                                 const ProgressFn& progress = {});
std::vector<RowScore> score_rows(const model::Decoder& target, const model::Decoder& draft,
                                 std::span<const TokenRow> rows, const SamplingOptions& sampling,
                                 const ProgressFn& progress = {});

// Passes the scores of every conversation to the gate, in order of first appearance. A row without a conversation id is
// a conversation of its own. observe() and summarise() leave out rows without measured tokens. `others` are the scores
// of the draft to compare with (--against); empty if there is none.
void observe(AcceptanceGate& gate, std::span<const TokenRow> rows, std::span<const RowScore> scores,
             std::span<const RowScore> others = {});

// Fills the same fields of the report as gate.fill(), and alpha_tokens, greedy_agreement, entropy (also per segment),
// tokens, request_alphas and request_ids. `rows` must be all rows that the gate has observed.
void summarise(std::span<const TokenRow> rows, std::span<const RowScore> scores, const AcceptanceGate& gate,
               ValidationReport& report);

}  // namespace specdec::deploy
