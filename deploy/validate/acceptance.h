// Teacher-forced acceptance: one pass of each model over a row, Σ_x min(p, q) at every answer position (contract:
// alpha).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/run_options.h"
#include "base/schema/shard_index.h"
#include "base/schema/validation_report.h"
#include "deploy/validate/gate.h"
#include "engine/model/weights.h"

namespace specdec::deploy {

// Means over the measured positions of one row; tokens = 0 when it has none.
struct RowScore {
  double alpha = 0;      // Σ_x min(p, q) under `sampling`; target greedy: 1[argmax equal]
  double agreement = 0;  // 1[argmax equal] of the raw logits
  double entropy = 0;    // of p, nats
  int64_t tokens = 0;    // positions t >= 1 whose token has loss_mask 1 and lies inside both models' context
};

// One score a row and draft, in one pass of the target, at the same positions. All decoders on one device, the same
// vocabulary. Plain softmax runs in ATen on the device; top-k, top-p and min-p go through decode::distribution() on the
// host, as served. Logits in memory at once: at most about 128 MiB a model. Throws Error(kData) for a token outside the
// vocabulary, Error(kModel) for logits that are not finite, Error(kNetwork) if stopped.
std::vector<std::vector<RowScore>> score_rows(const model::Decoder& target,
                                              std::span<const model::Decoder* const> drafts,
                                              std::span<const TokenRow> rows, const SamplingOptions& sampling,
                                              const ProgressFn& progress = {});
std::vector<RowScore> score_rows(const model::Decoder& target, const model::Decoder& draft,
                                 std::span<const TokenRow> rows, const SamplingOptions& sampling,
                                 const ProgressFn& progress = {});

// Shows the gate every conversation of these rows, in order of first appearance; a row without one is its own. Rows
// without measured tokens count nowhere, here and below. `others`: of the other draft, empty without one.
void observe(AcceptanceGate& gate, std::span<const TokenRow> rows, std::span<const RowScore> scores,
             std::span<const RowScore> others = {});

// Fills what gate.fill() does, and alpha_tokens, greedy_agreement, entropy (of segments, too), tokens, request_alphas
// and request_ids. `rows`: all that the gate has seen.
void summarise(std::span<const TokenRow> rows, std::span<const RowScore> scores, const AcceptanceGate& gate,
               ValidationReport& report);

}  // namespace specdec::deploy
