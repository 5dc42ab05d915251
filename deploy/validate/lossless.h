// Checks that a draft does not change the target's output: compares greedy text token by token, and sampled text by its
// distribution.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/progress.h"
#include "base/run_options.h"
#include "base/schema/shard_index.h"
#include "deploy/validate/rollout_figures.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/decode/step.h"

namespace specdec::deploy {

// Returns whether the best two logits differ by less than 4 × unit round-off × the largest finite |logit|
// (docs/contract.md, Exactness).
bool is_near_tie(std::span<const float> logits, double unit_roundoff);
// Returns the unit round-off of an arithmetic, which is half the distance from 1 to the next larger number: 2^-24 for
// fp32, 2^-11 for fp16, 2^-8 for bf16. For int8 it is that of fp32, because only weights are int8. Throws
// Error(kInternal) for other names.
double unit_roundoff(const std::string& dtype);  // fp32 | fp16 | bf16 | int8

struct GreedyComparison {
  int64_t prompts = 0, identical = 0, near_ties = 0, differences = 0;
};
// Compares plain and speculative roll-outs of the same prompts at temperature 0. Where they diverge, the target's own
// logits decide whether the two tokens are a near-tie or the outputs differ.
GreedyComparison compare_greedy(const decode::ModelPair& models, std::span<const TokenRow> rows,
                                decode::RolloutOptions options, double unit_roundoff, const ProgressFn& progress = {});
// Compares answers that were generated before, in the same way as compare_greedy().
GreedyComparison compare_answers(decode::CausalModel& target, std::span<const TokenRow> rows,
                                 std::span<const decode::Rollout> plain, std::span<const decode::Rollout> speculative,
                                 double unit_roundoff);

struct SampledOptions {
  SamplingOptions sampling;  // temperature 0 is replaced by 1, because greedy output has no distribution to test
  VerifyRule verify = VerifyRule::kToken;
  int k = 3;
  int64_t tokens = 5;   // tokens generated in each run
  int64_t runs = 1600;  // number of runs over all contexts together
  int batch = 8;
  double seconds = 30;  // time limit, beyond which no new batch starts; every context gets at least one batch
  uint64_t seed = 0;
  decode::Stepper::VerifyFn verify_fn = &decode::verify;
};
struct SampledTest {
  int64_t runs = 0;
  double first_token_p = 1;  // p-value of the chi-square test of first tokens by id, summed over contexts
  double sequence_p = 1;     // p-value of the chi-square test of probability_transform() over all tokens
  double p_value = 1;        // 2 × the smaller of the two p-values, at most 1
};
// Tests whether sampled output follows the target's probabilities. Each run answers one of `contexts` (none of them
// empty) with its own seed. The first test counts the first tokens of the answers by id (tokens that are expected fewer
// than 5 times are counted together). The second test uses the randomised probability transform of every token,
//   U = P(ratio(Y) > ratio(x)) + v·P(ratio(Y) = ratio(x)), Y ~ p(· | prefix), ratio = q / p.
// The U are independent and uniform if and only if the output follows p (Rosenblatt 1952). If the output follows the
// draft too closely, tokens with a large q / p are too frequent, and the U are too low.
SampledTest sampled_test(const decode::ModelPair& models, std::span<const std::vector<int32_t>> contexts,
                         const SampledOptions& options, const Clock& clock, const ProgressFn& progress = {});

// Returns the randomised probability transform U of token x, by the formula at sampled_test(); v is in (0, 1).
double probability_transform(std::span<const float> p, std::span<const float> q, int32_t x, double v);

// Pearson's chi-square statistic and degrees of freedom of counts against probabilities, with a cell for each count.
// Cells that expect fewer than `least` counts are merged into one cell; if this cell still expects fewer, it is merged
// into the smallest other cell. If fewer than two cells remain, df is 0.
struct ChiSquare {
  double statistic = 0, df = 0;
};
ChiSquare pearson(std::span<const int64_t> counts, std::span<const double> probabilities, double least = 5);

}  // namespace specdec::deploy
