// Roll-outs: the target answers prompts with the server's own step, with the draft (at a fixed K, or one that the
// controller chooses) or without a draft. The gate and the bench measure them; distill judges drafts on them.
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
#include "engine/decode/request.h"
#include "engine/decode/runners/causal_model.h"

namespace specdec::decode {

struct RolloutOptions {
  int k = 8;      // tokens drafted in every step; 0 = plain, -1 = the controller chooses (with assumed costs)
  int max_k = 8;  // used if k = -1
  VerifyRule verify = VerifyRule::kToken;
  RequestOptions request = {.max_tokens = 64};  // for every answer
  uint64_t seed = 0;                            // of the run; combined with each row's id
  int batch = 8;                                // sequences per step
  std::string stage = "rollout";                // name in progress reports
  // Returns whether the time is over. Then no further row is started, and unfinished answers stay as they are. With
  // this function, at most one row is started before each step, so that it is called often. Empty: there is time for
  // all rows.
  std::function<bool()> is_late = {};
};
struct Rollout {
  std::vector<int32_t> tokens;  // the answer, including EOS; empty if the prompt leaves no space for one
  AcceptanceCounts counts;
};

// Rolls out every row. The prompt is tokens[0, prompt_tokens) (at least one token). `draft` may be null for plain
// decoding. An answer depends on its row's id, its prompt, K and the seed, but not on the other rows, as far as the
// models' arithmetic allows. Throws what the step throws, and Error(kNetwork) if stopped.
std::vector<Rollout> roll_out(CausalModel& target, CausalModel* draft, std::span<const TokenRow> rows,
                              const RolloutOptions& options, const ProgressFn& progress = {});

// Returns the row with its answer replaced; loss_mask is 0 on the prompt and 1 on the answer.
TokenRow answered_row(const TokenRow& row, const Rollout& rollout);

// Returns the seed of a row: the first 8 bytes of SHA-256 of "seed:id".
uint64_t row_seed(uint64_t seed, const std::string& id);

}  // namespace specdec::decode
