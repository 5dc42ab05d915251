// Computes default values of `specdec distill`: tokens per step, learning rate, and how much of a run's time may be
// spent on measurements before and during training. tests/bench/distill_defaults.py compares tokens per step and
// learning rate with the best of a grid.
#pragma once

#include <cstdint>
#include <limits>

namespace specdec::distill {

// Returns the peak learning rate for --lr 0. The rate was measured on models of width 64 and 128; above width 64 it is
// inversely proportional to the width (Yang et al. 2022, muP: Adam's rate for hidden matrices scales with 1 / width). A
// draft that was trained before (--draft model:) gets a third of this rate, because the full rate would first undo what
// the draft has learnt.
double default_learning_rate(int64_t hidden_size, bool trained_before);

// A verdict needs at least this many conversations among the held-out rows that judge the draft (verdict half).
inline constexpr int64_t kMinVerdictConversations = 8;
// A verdict needs at least this many held-out conversations in both halves together. Conversations go to the halves
// (verdict and selection) alternately, the first one to the verdict half.
inline constexpr int64_t kMinHeldOutConversations = 2 * kMinVerdictConversations - 1;

// Model of a training step's time: fixed + per_token · tokens of the batch. If the target's logits are cached, their
// first computation takes first_answer per token; without a cache, per_token includes it.
struct StepCost {
  double fixed = 0, per_token = 0, first_answer = 0;  // seconds
};

struct RunLimits {
  double seconds = 0;          // 0 = no limit
  double tokens = 0;           // epochs times the tokens of the training set; 0 = no limit
  int64_t steps = 0;           // 0 = no limit
  int64_t step_tokens = 0;     // tokens per step as given by the options; 0 = not chosen yet
  double training_tokens = 0;  // tokens of the training set
  double tuning_seconds = 0;   // time limit for measuring a step; 0 = kTuningShare of `seconds`
};

// Returns the number of tokens that a run trains on with batches of `batch_tokens`.
double tokens_in_run(const RunLimits& limits, const StepCost& cost, int64_t batch_tokens);

// If a run of fewer than kTeachingSteps steps shows no gain, its verdict is inconclusive, because a longer run may
// still improve the draft.
inline constexpr int64_t kTeachingSteps = 100;
inline constexpr int64_t kWantedSteps = 1000, kLeastStepTokens = 256, kMostStepTokens = 8192,
                         kStepTokensOfGivenSteps = 4096;
// Returns the tokens per step: the largest power of two from kLeastStepTokens to kMostStepTokens with which the run
// still has kWantedSteps steps. Larger batches cost less per token, but a draft trained with fewer steps stays worse,
// even with the same number of tokens. Between 1,000 and 3,000 steps the result hardly changes. If only the number of
// steps is limited, returns kStepTokensOfGivenSteps.
int64_t default_step_tokens(const RunLimits& limits, const StepCost& cost);

// A training step accumulates gradients over `accumulate` batches of `batch_tokens` tokens. batch_shape() limits a
// batch to 64 M values of logits, but a batch has at least kLeastStepTokens tokens.
struct BatchShape {
  int64_t batch_tokens = 0, accumulate = 1;
};
BatchShape batch_shape(int64_t step_tokens, int64_t vocab);

// Shares of the run's time for choosing layers, for measuring the machine or a step, for answering held-out prompts,
// for measuring the initial draft, and for each evaluation that chooses the checkpoint.
inline constexpr double kLayerChoiceShare = 0.03, kTuningShare = 0.01, kContextsShare = 0.03,
                        kFirstEvaluationShare = 0.03, kSelectionShare = 0.01;
// Estimated time per token of batched decoding divided by that of prefill. Decoding is slower because each step reads
// all weights for only a few rows.
inline constexpr double kDecodeOverPrefill = 4;
// Floating-point operations that a measurement may always take, even in a short run (about one second of a CPU).
inline constexpr double kFreeFlop = 5e10;

// Returns the number of floating-point operations that the run can do within its limits. `target_flop` and `draft_flop`
// are the operations per token of a forward pass, head included. Training on a token takes target_flop + 3 ·
// draft_flop.
double flop_of_run(const RunLimits& limits, double flop_per_second, double target_flop, double draft_flop);

// Returns the number of evaluations on the held-out rows during a run: ten, or fewer if ten would take more than a
// tenth of the run, but at least two.
inline constexpr int64_t kMostEvaluations = 10;
int64_t evaluations_for(double run_flop, double evaluation_flop);

// Returns max(flop, free) / row_flop, the number of rows that can be computed, but at least `least`.
int64_t rows_for(double flop, double row_flop, int64_t least, double free = kFreeFlop);

}  // namespace specdec::distill
