// What `specdec distill` chooses where no flag says it: tokens of a step, learning rate, and how much of the run
// measuring may take. Measured with tests/bench/distill_defaults.py.
#pragma once

#include <cstdint>
#include <limits>

namespace specdec::distill {

// The peak for --lr 0, by hidden size: measured on 64- and 128-wide models, and inversely proportional to the width
// above (Yang et al. 2022, muP: Adam's rate for hidden matrices scales with 1 / width). A draft that was trained before
// (model:) starts from a third of it: the full rate would first undo what it knows.
double default_learning_rate(int64_t hidden_size, bool trained_before);

// A training step's time as a line: fixed + per_token · tokens of the batch. The target's answer to a token of the
// training set is computed once where they are kept, else it is part of per_token.
struct StepCost {
  double fixed = 0, per_token = 0, first_answer = 0;  // seconds
};

// What limits a run.
struct RunLimits {
  double seconds = 0;          // 0: none
  double tokens = 0;           // epochs times the tokens of the training set; 0: none
  int64_t steps = 0;           // 0: none
  int64_t step_tokens = 0;     // as given; 0: to be chosen
  double training_tokens = 0;  // of the data
};

// Tokens that a run sees with batches of so many.
double tokens_in_run(const RunLimits& limits, const StepCost& cost, int64_t batch_tokens);

// Tokens of a step: the largest power of two that leaves the run kWantedSteps steps. Larger batches cost less a token,
// and a draft that had fewer steps stays behind whatever it saw; between 1,000 and 3,000 steps the result is flat.
inline constexpr int64_t kWantedSteps = 1000, kLeastStepTokens = 256, kMostStepTokens = 8192,
                         kStepTokensOfGivenSteps = 4096;
int64_t default_step_tokens(const RunLimits& limits, const StepCost& cost);

// A step of `step_tokens` in batches whose logits are at most 64 M values: what is taken at once, and how many times.
struct BatchShape {
  int64_t batch_tokens = 0, accumulate = 1;
};
BatchShape batch_shape(int64_t step_tokens, int64_t vocab);

// Work before the first step and beside the steps, as shares of the run.
inline constexpr double kLayerChoiceShare = 0.04, kTuningShare = 0.01, kFirstEvaluationShare = 0.04,
                        kSelectionShare = 0.01;
// Whatever the run is: measuring that takes about a second is worth it.
inline constexpr double kFreeFlop = 5e10;

// Floating-point operations of passing one token through a model of so many parameters, its head included; a training
// step does three of them.
double flop_of_run(const RunLimits& limits, double flop_per_second, double target_flop, double draft_flop);

// Measurements of the held-out rows over a run, ten unless they would take more than a tenth of it; at least two.
inline constexpr int64_t kMostEvaluations = 10;
int64_t evaluations_for(double run_flop, double evaluation_flop);

// How many rows of `row_flop` each a share of the run pays for; at least `least`.
int64_t rows_for(double flop, double row_flop, int64_t least);

}  // namespace specdec::distill
