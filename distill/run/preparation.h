// Prepares a distill run before its first step: makes the initial draft, measures it, and chooses the settings that the
// options leave open. This takes at most a tenth of the run (time_plan.h says how much under a time limit), reports
// progress throughout, and ends when a stop is requested.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/progress.h"
#include "distill/gradient/gradient.h"
#include "distill/run/draft_init.h"
#include "distill/settings/defaults.h"
#include "distill/settings/options.h"
#include "distill/settings/time_plan.h"
#include "distill/train/contexts.h"
#include "distill/train/evaluate.h"

namespace specdec::distill {

// Names the stages of the preparation and reports their progress. Its functions throw Error(kNetwork) when a stop is
// requested.
class Stages {
 public:
  explicit Stages(ProgressFn progress) : progress_(std::move(progress)) {}
  void begin(const std::string& name, const std::string& detail = "");
  EvaluationStep step();  // returns a function that reports the progress of the current stage

 private:
  void look() const;
  ProgressFn progress_;
  std::string name_;
};

// Returns the limits that the options set; `train_tokens` is the size of the training set.
RunLimits run_limits(const DistillOptions& options, int64_t train_tokens);

// Keeps the first conversations of each half, until the half has at least the given number of rows. Without `exactly`,
// the selection half keeps at least kMinVerdictConversations and the verdict half twice as many, if there are that
// many, even if fewer rows are asked for. `exactly` drops this minimum, which would be too much under a time limit.
void shorten(HeldOut& held_out, int64_t selection_rows, int64_t verdict_rows, bool exactly = false);

struct PreparationInput {
  const DistillOptions& options;
  const DraftSpec& spec;
  std::shared_ptr<const model::Decoder> target;  // null: not in this process; the same as Setup::target
  const TeacherSource* teacher;                  // null: cross entropy alone
  const model::DecoderConfig& draft;             // for prune, the target's; of a head, its layer's
  at::Device device;
  const PreparedRows& train;
  RowLimits limits = {};        // of held-out rows
  int64_t head_parameters = 0;  // 0 unless the draft is a head
  // Lets the target answer the held-out prompts that were chosen. It is empty if the draft is measured on the rows' own
  // answers.
  std::function<HeldOutAnswers(const HeldOut&, const AnswerLimits&)> answer = {};
  const parallel::Ranks* ranks = &parallel::Ranks::alone();
  std::shared_ptr<DividedTarget> divided = nullptr;  // as Setup::divided
};
struct Preparation {
  DraftInit init;
  Evaluation before;
  int64_t selection_rows = 0, verdict_rows = 0;  // for shorten() when the run is resumed
  bool exactly = false;                          // for shorten(), too
  int64_t evaluations = kMostEvaluations;        // evaluations of the selection half over the run
  Json answers;                                  // HeldOutAnswers, or null
  double start_seconds = 0;                      // that measuring the draft took
};
// Makes the initial draft, shortens `held_out` to what the run can afford to measure, and measures the draft. Rank 0
// makes the draft, all ranks measure it, and all get the same preparation.
Preparation prepare(const PreparationInput& input, HeldOut& held_out, Stages& stages, const TimePlan& time);

// Sets tokens per step and learning rate where `options` leaves them open, from the run's limits and, under a time
// limit, the measured time of a step. Returns {"batch_tokens", "accumulate", "learning_rate"} for the checkpoint, and
// {"step_seconds", "expected_steps"} if the step was measured. Warns of a time limit that is worth too few steps.
Json choose_settings(DistillOptions& options, const RunLimits& limits, const StepInput& input, Stages& stages,
                     const Clock& clock);
void apply_settings(const Json& chosen, DistillOptions& options);
// Returns a time limit that is worth this many steps.
double seconds_for_steps(double step_seconds, int64_t steps);

// Replaces the draft of every rank by that of rank 0. `target` may be null unless the draft is a head.
void share_draft(DraftInit& init, const std::shared_ptr<const model::Decoder>& target, const parallel::Ranks& ranks,
                 at::Device device);
void share_weights(const TrainedDraft& draft,
                   const parallel::Ranks& ranks);  // the same, if all have a draft of that shape

}  // namespace specdec::distill
