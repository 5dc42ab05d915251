// Computes the gate's figures from roll-outs (engine/decode/rollout.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/schema/shard_index.h"
#include "base/schema/validation_report.h"
#include "engine/decode/rollout.h"

namespace specdec::deploy {

// Returns the figures of the roll-outs whose indices are in `members`. Counts are summed; alpha is the mean overlap
// over reached positions, first within each conversation, then over conversations.
RolloutFigures rollout_figures(std::span<const TokenRow> rows, std::span<const decode::Rollout> rollouts,
                               std::span<const size_t> members, const decode::RolloutOptions& options);

// Returns the mean overlap at each draft position with its interval: a ratio of sums, bootstrapped over conversations.
// `n` is the number of steps that reached the position.
std::vector<Estimate> overlap_by_position(std::span<const TokenRow> rows, std::span<const decode::Rollout> rollouts);

}  // namespace specdec::deploy
