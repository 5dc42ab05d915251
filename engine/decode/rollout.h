// Roll-outs: the target generates answers to prompts with the same step as the server. A draft may be used, with a
// fixed K or a K that the controller chooses. validate and bench measure the answers; distill judges drafts by them.
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
  RequestOptions request = {.max_tokens = 64};  // options of every answer
  uint64_t seed = 0;                            // seed of the run, which is combined with each row's id
  int batch = 8;                                // sequences per step
  std::string stage = "rollout";                // name in progress reports
  // Returns whether the time limit is reached. Then no further answer is started, and unfinished answers stay
  // incomplete. If is_late is set, at most one answer is started before each step, so that the time is checked often.
  // Empty: no time limit.
  std::function<bool()> is_late = {};
};
struct Rollout {
  std::vector<int32_t> tokens;  // the answer, including EOS; empty if the prompt leaves no space for one
  AcceptanceCounts counts;
};

// Generates an answer for every row. The prompt is tokens[0, prompt_tokens), at least one token. `draft` may be null
// for plain decoding. An answer depends on its row's id, its prompt, K and the seed. It does not depend on the other
// rows, as far as the models' arithmetic allows. Throws what Stepper::step() throws. Throws Error(kNetwork), which
// means that the caller may try again, if a signal stops it.
std::vector<Rollout> roll_out(CausalModel& target, CausalModel* draft, std::span<const TokenRow> rows,
                              const RolloutOptions& options, const ProgressFn& progress = {});

// Returns the row with its answer replaced; loss_mask is 0 on the prompt and 1 on the answer.
TokenRow answered_row(const TokenRow& row, const Rollout& rollout);

// Returns the random seed of a row: the first 8 bytes of SHA-256 of "seed:id".
uint64_t row_seed(uint64_t seed, const std::string& id);

}  // namespace specdec::decode
