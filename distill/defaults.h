// Default values of `specdec distill`: tokens per step, learning rate, and the share of the run that measuring may
// take. They were measured with tests/bench/distill_defaults.py.
#pragma once

#include <cstdint>
#include <limits>

namespace specdec::distill {

// Peak learning rate for --lr 0, by hidden size. It was measured on 64- and 128-wide models and is inversely
// proportional to the width above 64 (Yang et al. 2022, muP: Adam's rate for hidden matrices scales with 1 / width). A
// draft that was trained before (model:) starts from a third of it, because the full rate would first undo what it has
// learnt.
double default_learning_rate(int64_t hidden_size, bool trained_before);

// Model of a training step's time: fixed + per_token · tokens of the batch. Where the target's logits are cached,
// first_answer is the extra time per token for computing them once; otherwise that time is part of per_token.
struct StepCost {
  double fixed = 0, per_token = 0, first_answer = 0;  // seconds
};

// The limits of a run.
struct RunLimits {
  double seconds = 0;          // 0 = no limit
  double tokens = 0;           // epochs times the tokens of the training set; 0 = no limit
  int64_t steps = 0;           // 0 = no limit
  int64_t step_tokens = 0;     // as given by the options; 0 = not chosen yet
  double training_tokens = 0;  // tokens of the training set
};

// Returns the number of tokens that a run trains on with batches of `batch_tokens`.
double tokens_in_run(const RunLimits& limits, const StepCost& cost, int64_t batch_tokens);

// Returns the tokens per step: the largest power of two with which the run still has kWantedSteps steps. Larger batches
// cost less per token, but a draft trained with fewer steps stays worse however many tokens it saw; between 1,000 and
// 3,000 steps the result is flat.
inline constexpr int64_t kWantedSteps = 1000, kLeastStepTokens = 256, kMostStepTokens = 8192,
                         kStepTokensOfGivenSteps = 4096;
int64_t default_step_tokens(const RunLimits& limits, const StepCost& cost);

// Splits a step of `step_tokens` into batches whose logits are at most 64 M values: tokens per batch, and batches per
// step.
struct BatchShape {
  int64_t batch_tokens = 0, accumulate = 1;
};
BatchShape batch_shape(int64_t step_tokens, int64_t vocab);

// Shares of the run that may be spent before the first step and on evaluations.
inline constexpr double kLayerChoiceShare = 0.04, kTuningShare = 0.01, kFirstEvaluationShare = 0.04,
                        kSelectionShare = 0.01;
// Measuring that takes about a second is always worth it, however short the run is.
inline constexpr double kFreeFlop = 5e10;

// Returns the floating-point operations that the run can do. `target_flop` and `draft_flop` are those of a forward pass
// of one token through each model, head included; a training step costs three times the draft's.
double flop_of_run(const RunLimits& limits, double flop_per_second, double target_flop, double draft_flop);

// Returns the number of evaluations on the held-out rows over a run: ten, fewer if these would take more than a tenth
// of it, but at least two.
inline constexpr int64_t kMostEvaluations = 10;
int64_t evaluations_for(double run_flop, double evaluation_flop);

// Returns how many rows of `row_flop` each `flop` operations pay for; at least `least`.
int64_t rows_for(double flop, double row_flop, int64_t least);

}  // namespace specdec::distill
