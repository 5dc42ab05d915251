// Is the output with the draft the output without it? Greedy text compared token by token, sampled text by
// distribution.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/progress.h"
#include "base/run_options.h"
#include "base/schema/shard_index.h"
#include "deploy/validate/rollout.h"
#include "engine/decode/causal_model.h"
#include "engine/decode/step.h"

namespace specdec::deploy {

// Contract, Exactness: the best two logits are closer than 4 × unit round-off × the largest finite |logit|.
bool is_near_tie(std::span<const float> logits, double unit_roundoff);
// 2^-24 for fp32, 2^-11 for fp16, 2^-8 for bf16 (half the distance from 1 to the next number, rounded to nearest).
// Throws Error(kInternal) for other names.
double unit_roundoff(const std::string& dtype);  // fp32 | fp16 | bf16 | int8

struct GreedyComparison {
  int64_t prompts = 0, identical = 0, near_ties = 0, differences = 0;
};
// Plain and speculative roll-outs at temperature 0, same prompts. Where they part, the target's own logits decide: a
// near-tie between the two tokens, or a difference.
GreedyComparison compare_greedy(decode::CausalModel& target, decode::CausalModel& draft, std::span<const TokenRow> rows,
                                RolloutOptions options, double unit_roundoff, const ProgressFn& progress = {});
// The judgement alone, of answers that exist already.
GreedyComparison compare_answers(decode::CausalModel& target, std::span<const TokenRow> rows,
                                 std::span<const Rollout> plain, std::span<const Rollout> speculative,
                                 double unit_roundoff);

struct SampledOptions {
  SamplingOptions sampling;  // temperature 0 is replaced by 1: a greedy draft has no distribution to test
  VerifyRule verify = VerifyRule::kToken;
  int k = 3;
  int64_t tokens = 5;   // of every run
  int64_t runs = 1600;  // over all contexts
  int batch = 8;
  double seconds = 30;  // no new run after that, but at least one batch a context
  uint64_t seed = 0;
  decode::Stepper::VerifyFn verify_fn = &decode::verify;
};
struct SampledTest {
  int64_t runs = 0;
  double first_token_p = 1;  // chi-square of the first token by id, summed over contexts
  double sequence_p = 1;     // chi-square of all tokens' probability transforms
  double p_value = 1;        // 2 × the smaller, at most 1
};
// Every run answers one of `contexts` (each non-empty) with its own seed. Two tests against the target's own
// probabilities: first tokens by id (cells that expect fewer than 5 merged), and every token's randomised probability
// transform U = P(ratio(Y) > ratio(x)) + v·P(ratio(Y) = ratio(x)), Y ~ p(· | prefix), ratio = q / p: independent and
// uniform if and only if the output follows p (Rosenblatt 1952), and low wherever the draft's choices leak through.
SampledTest sampled_test(decode::CausalModel& target, decode::CausalModel& draft,
                         std::span<const std::vector<int32_t>> contexts, const SampledOptions& options,
                         const Clock& clock, const ProgressFn& progress = {});

// U of token x as above, v in (0, 1).
double probability_transform(std::span<const float> p, std::span<const float> q, int32_t x, double v);

// Pearson's statistic and degrees of freedom of counts against probabilities; cells that expect fewer than `least` are
// merged into one, that one into the smallest other if it still expects fewer. Fewer than two cells: df 0.
struct ChiSquare {
  double statistic = 0, df = 0;
};
ChiSquare pearson(std::span<const int64_t> counts, std::span<const double> probabilities, double least = 5);

}  // namespace specdec::deploy
