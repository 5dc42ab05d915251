// Roll-outs: the target answers prompts through the server's own step, with the draft at a fixed K or without it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/acceptance.h"
#include "base/progress.h"
#include "base/run_options.h"
#include "base/schema/shard_index.h"
#include "base/schema/validation_report.h"
#include "engine/decode/causal_model.h"
#include "engine/decode/request.h"

namespace specdec::deploy {

struct RolloutOptions {
  int k = 8;      // every step drafts this many; 0 = plain, -1 = the controller chooses (costs assumed)
  int max_k = 8;  // for -1
  VerifyRule verify = VerifyRule::kToken;
  decode::RequestOptions request = {.max_tokens = 64};  // of every answer
  uint64_t seed = 0;                                    // of the run; each row adds its id
  int batch = 8;                                        // sequences in one step
  std::string stage = "rollout";                        // in progress
};
struct Rollout {
  std::vector<int32_t> tokens;  // the answer, EOS included; empty where the prompt leaves no room for one
  AcceptanceCounts counts;
};

// Prompts are tokens[0, prompt_tokens) (at least one token). `draft` may be null: plain. An answer depends on its row's
// id, its prompt, K and the seed, not on its neighbours, as far as the models' arithmetic does not. Throws what the
// step throws; Error(kNetwork) if stopped.
std::vector<Rollout> roll_out(decode::CausalModel& target, decode::CausalModel* draft, std::span<const TokenRow> rows,
                              const RolloutOptions& options, const ProgressFn& progress = {});

// The row with its answer replaced: mask 0 on the prompt, 1 on the answer.
TokenRow answered_row(const TokenRow& row, const Rollout& rollout);

// Seed of a row: the first 8 bytes of SHA-256 over "seed:id".
uint64_t row_seed(uint64_t seed, const std::string& id);

// Figures of the roll-outs in `members`: counts added up; alpha is the mean overlap over reached positions within a
// conversation, then over conversations.
RolloutFigures rollout_figures(std::span<const TokenRow> rows, std::span<const Rollout> rollouts,
                               std::span<const size_t> members, const RolloutOptions& options);

// Overlap at each position with its interval: bootstrap over conversations of the ratio of sums. .n = steps that
// reached it.
std::vector<Estimate> overlap_by_position(std::span<const TokenRow> rows, std::span<const Rollout> rollouts);

// Means of `values` (of rows[members[i]]) within each conversation, in order of first appearance; a row without a
// conversation is its own.
std::vector<double> conversation_means(std::span<const TokenRow> rows, std::span<const size_t> members,
                                       std::span<const double> values);

}  // namespace specdec::deploy
