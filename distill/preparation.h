// What distill does before its first step: where the draft starts, how good that is, and the settings that nobody gave.
// Together at most a tenth of the run; with progress all along, and given up where a stop is requested.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/progress.h"
#include "distill/defaults.h"
#include "distill/draft_init.h"
#include "distill/evaluate.h"
#include "distill/gradient.h"
#include "distill/options.h"

namespace specdec::distill {

// One stage after the other: each has a name, and ends with Error(kNetwork) where a stop is requested.
class Stages {
 public:
  explicit Stages(ProgressFn progress) : progress_(std::move(progress)) {}
  void begin(const std::string& name, const std::string& detail = "");
  EvaluationStep step();  // of the stage that was begun last; share in [0, 1]

 private:
  void look() const;
  ProgressFn progress_;
  std::string name_;
};

// The limits that the options set; `train_tokens` of the data.
RunLimits run_limits(const DistillOptions& options, int64_t train_tokens);

// The first conversations of both halves with at least so many rows; the half that judges keeps at least twice the
// conversations that a verdict needs, the half that chooses as many as that.
void shorten(HeldOut& held_out, int64_t selection_rows, int64_t verdict_rows);

struct PreparationInput {
  const DistillOptions& options;
  const DraftSpec& spec;
  std::shared_ptr<const model::Decoder> target;  // null: cross entropy alone
  const model::DecoderConfig& draft;             // of prune: the target's
  at::Device device;
  const PreparedRows& train;
};
struct Preparation {
  DraftInit init;
  Evaluation before;
  int64_t selection_rows = 0, verdict_rows = 0;  // for shorten(), when the run goes on
  int64_t evaluations = kMostEvaluations;        // of the half that chooses, over the run
};
// Makes the draft, shortens `held_out` to what the run can pay for, and measures the start.
Preparation prepare(const PreparationInput& input, HeldOut& held_out, Stages& stages, const Clock& clock);

// Fills in tokens of a step and learning rate where `options` leaves them open, by the run's limits and the measured
// time of a step. Returns {"batch_tokens", "accumulate", "learning_rate", "step_seconds", "expected_steps"} for the
// checkpoint.
Json choose_settings(DistillOptions& options, const RunLimits& limits, const GradientSource& source,
                     const std::vector<NamedTensor>& parameters, const std::vector<TokenRow>& rows, Stages& stages,
                     const Clock& clock);
void apply_settings(const Json& chosen, DistillOptions& options);

// Every parameter, marked as one to learn.
std::vector<NamedTensor> trainable(model::Decoder& draft);

}  // namespace specdec::distill
