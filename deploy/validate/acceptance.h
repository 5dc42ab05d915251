// Teacher-forced acceptance: one pass of each model over a row, Σ_x min(p, q) at every answer position (contract: alpha).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/progress.h"
#include "base/run_options.h"
#include "base/schema/shard_index.h"
#include "base/schema/validation_report.h"
#include "engine/model/weights.h"

namespace specdec::deploy {

// Means over the measured positions of one row; tokens = 0 when it has none.
struct RowScore {
  double alpha = 0;      // Σ_x min(p, q) under `sampling`; target greedy: 1[argmax equal]
  double agreement = 0;  // 1[argmax equal] of the raw logits
  double entropy = 0;    // of p, nats
  int64_t tokens = 0;    // positions t >= 1 whose token has loss_mask 1 and lies inside both models' context
};

// One score a row. Both decoders on one device, the same vocabulary. Plain softmax runs in ATen on the device; top-k, top-p and
// min-p go through decode::distribution() on the host, as served. Logits in memory at once: at most about 128 MiB a model.
// Throws Error(kData) for a token outside the vocabulary, Error(kModel) for logits that are not finite, Error(kNetwork) if
// stopped.
std::vector<RowScore> score_rows(const model::Decoder& target, const model::Decoder& draft, std::span<const TokenRow> rows,
                                 const SamplingOptions& sampling, const ProgressFn& progress = {});

// Fills alpha (mean over requests; interval over conversations by bounded_mean, widened to hold the mean), alpha_tokens,
// greedy_agreement, entropy, tokens, request_alphas, request_ids and segments (one a domain; rollout untouched). Rows without
// measured tokens count nowhere.
void summarise(std::span<const TokenRow> rows, std::span<const RowScore> scores, ValidationReport& report);

}  // namespace specdec::deploy
