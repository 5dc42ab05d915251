// Prepares a distill run before its first step: makes the initial draft, measures it, and chooses the settings that the
// options leave open. The preparation takes at most a tenth of the run (for runs with a time limit see time_plan.h). It
// reports progress, and it throws when a stop is requested.
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

// Reports the name and progress of each stage of the preparation. The functions throw Error(kNetwork), which means "run
// it again", when a stop is requested.
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

// Shortens both halves of the held-out rows to their first conversations, as many as are needed for the given number of
// rows. The selection half chooses the checkpoint, the verdict half judges the draft. If `exactly` is false, the
// selection half keeps at least kMinVerdictConversations and the verdict half twice as many, where the data has them.
// Under a time limit, measuring so many could take too long; callers then set `exactly`.
void shorten(HeldOut& held_out, int64_t selection_rows, int64_t verdict_rows, bool exactly = false);

struct PreparationInput {
  const DistillOptions& options;
  const DraftSpec& spec;
  std::shared_ptr<const model::Decoder> target;  // see Setup::target; null: the target is not loaded
  const TeacherSource* teacher;                  // null: measure cross entropy only
  const model::DecoderConfig& draft;             // the draft's configuration; prune: the target's; head: its layer's
  at::Device device;
  const PreparedRows& train;
  RowLimits limits = {};        // largest length of a held-out row, and its first token that is scored
  int64_t head_parameters = 0;  // 0 unless the draft is a head
  // Generates the target's answers to the held-out prompts. Empty if the draft is measured on the answers in the data.
  std::function<HeldOutAnswers(const HeldOut&, const AnswerLimits&)> answer = {};
  const parallel::Ranks* ranks = &parallel::Ranks::alone();
  std::shared_ptr<DividedTarget> divided = nullptr;  // null: the target is not divided among ranks
};
struct Preparation {
  DraftInit init;
  Evaluation before;
  int64_t selection_rows = 0, verdict_rows = 0;  // rows per held-out half, for shorten() in a resumed run
  bool exactly = false;                          // argument `exactly` of shorten() in a resumed run
  int64_t evaluations = kMostEvaluations;        // how often the run measures the rows that choose the checkpoint
  Json answers;                                  // HeldOutAnswers as JSON, or null
  double start_seconds = 0;                      // duration of measuring the initial draft
};
// Makes the initial draft on rank 0, shortens `held_out` to the rows that the run can afford to measure, and measures
// the draft on all ranks. All ranks return the same preparation.
Preparation prepare(const PreparationInput& input, HeldOut& held_out, Stages& stages, const TimePlan& time);

// Sets tokens per step and learning rate where `options` leaves them open, from the run's limits and, under a time
// limit, the measured time of a step. Returns {"batch_tokens", "accumulate", "learning_rate"} for the checkpoint, and
// {"step_seconds", "expected_steps"} if the step was measured. Logs a warning if the time limit allows too few steps.
Json choose_settings(DistillOptions& options, const RunLimits& limits, const StepInput& input, Stages& stages,
                     const Clock& clock);
void apply_settings(const Json& chosen, DistillOptions& options);
// Returns the time limit under which training gets `steps` steps of `step_seconds` each.
double seconds_for_steps(double step_seconds, int64_t steps);

// Copies rank 0's draft to every other rank. `target` may be null unless the draft is a head.
void share_draft(DraftInit& init, const std::shared_ptr<const model::Decoder>& target, const parallel::Ranks& ranks,
                 at::Device device);
// Copies rank 0's weights to every other rank; every rank already has a draft of the same shapes.
void share_weights(const TrainedDraft& draft, const parallel::Ranks& ranks);

}  // namespace specdec::distill
