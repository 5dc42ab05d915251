// The training loop: batches → loss → update, with evaluated checkpoints, roll-back after non-finite steps, limits and
// resume.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/progress.h"
#include "distill/gradient/gradient.h"
#include "distill/gradient/optimizer.h"
#include "distill/gradient/trained_draft.h"
#include "distill/loss/losses.h"
#include "distill/metrics/metrics.h"
#include "distill/rows/batcher.h"
#include "distill/settings/schedule.h"
#include "distill/teacher/teacher.h"
#include "distill/train/checkpoint.h"
#include "distill/train/evaluate.h"
#include "engine/parallel/ranks.h"

namespace specdec::distill {

// Decides what to do about a step whose loss or gradient is not finite. The policy skips the update; after three such
// steps in a row it rolls back to the last checkpoint and halves the learning rate; after three roll-backs it gives up.
class FaultPolicy {
 public:
  enum class Action { kStep, kSkip, kRollBack, kStop };
  explicit FaultPolicy(int rollbacks = 0) : rollbacks_(rollbacks) {}
  Action observe(bool finite);
  int rollbacks() const { return rollbacks_; }

 private:
  int in_a_row_ = 0, rollbacks_ = 0;
};

struct TrainerOptions {
  std::filesystem::path run_directory;
  LossOptions loss;
  OnPolicyOptions on_policy;
  RowTerms terms;
  AdamWOptions adamw;
  ScheduleOptions schedule;  // total_steps or the time limit must be set, or both
  int64_t batch_tokens = 4096, accumulate = 1;
  int64_t evaluations = kMostEvaluations;  // number of evaluations over the run
  int64_t evaluate_every = 0;              // in steps; 0 = spread `evaluations` over the run
  int64_t checkpoint_every = 0;            // in steps; 0 = at each evaluation
  uint64_t seed = 0;
  bool shares_optimizer = false;  // divides the optimizer state among the ranks (optimizer.h)
  bool recompute = false;         // see GradientSource::recompute
  Json extra;                     // saved in every checkpoint beside the trainer's own state
};

struct TrainerData {
  const std::vector<TokenRow>* train = nullptr;
  const std::vector<TokenRow>* selection = nullptr;  // held-out rows that choose the checkpoint; may be empty
  Teacher* teacher = nullptr;                        // null if the loss has no term but ce
  Teacher* judge = nullptr;                          // teacher for scoring `selection`; null: score by cross entropy
  // All ranks have the same data and draft. Each step is divided among the ranks; rank 0 decides when to stop, evaluate
  // and save, measures time and writes files.
  const parallel::Ranks* ranks = &parallel::Ranks::alone();
  DividedTarget* divided = nullptr;  // the target that teacher or draft read, if it is divided among the ranks
};

struct TrainingSummary {
  int64_t steps = 0, tokens = 0;  // tokens seen, without padding
  double seconds = 0;             // training time, including the time before a resume
  double last_loss = 0;
  int64_t skipped_steps = 0;
  int rollbacks = 0;
  double tokens_per_second = 0;  // counting only the training steps of this process
  std::vector<Measured> measured;
  std::vector<double> deeper;  // with roll-outs: running mean of the training acceptance at draft positions 2, 3, …
};

class Trainer {
 public:
  // Makes a trainer that updates the weights of `draft` in place.
  Trainer(const TrainerOptions& options, const TrainerData& data, const TrainedDraft& draft, const Clock& clock,
          ProgressFn progress);

  // Continues from a checkpoint. Every rank passes the checkpoint's state; only rank 0 reads its files.
  void resume(const Checkpoint& checkpoint);
  // Evaluates and saves step 0, then trains until a limit is reached. Throws Error(kNetwork), which means "run it
  // again", after saving, when a stop is requested; Error(kInternal) when the loss stays non-finite after three
  // roll-backs; Error(kIo) if the disk is full.
  TrainingSummary run();

 private:
  struct StepFigures {
    double loss = 0, acceptance = 0, norm = 0, rate = 0;
    std::vector<double> deeper;  // mean acceptance at draft positions 2, 3, …; NaN for a position without rows
    int64_t tokens = 0;
    bool finite = true, given_up = false;
  };
  // Rank 0's decisions for all ranks, and whether any rank was asked to stop.
  struct Decision {
    bool last = false, due = false, stop = false;
  };
  Decision decide() const;
  bool finished() const;
  double fraction() const;
  double evaluations_due() const;  // number of evaluations that should be done by now
  double elapsed() const;
  void train();  // trains until a limit is reached
  StepFigures train_step();
  StepFigures step_gradients(const StepShare& share);
  bool measure();  // returns false if the score is not finite; throws GivenUp when a stop is requested
  void save();
  void roll_back();
  Json state() const;
  void restore(const Checkpoint& checkpoint);
  void report(const StepFigures& figures, double step_seconds);

  TrainerOptions options_;
  TrainerData data_;
  TrainedDraft draft_;
  const Clock& clock_;
  ProgressFn progress_;
  const parallel::Ranks& ranks_;
  std::optional<CheckpointStore> store_;  // on rank 0 only
  std::vector<NamedTensor> parameters_;
  AdamW optimizer_;
  GradientSums sums_;
  Batcher batcher_;
  std::unique_ptr<Metrics> metrics_;  // on rank 0 only
  FaultPolicy faults_;
  int64_t step_ = 0, tokens_ = 0, skipped_ = 0, saved_step_ = -1, measured_step_ = -1;
  int64_t session_tokens_ = 0;
  double acceptance_ = 0;  // mean acceptance of the previous step's rows, from which lk_hybrid computes λ
  // Running mean of the acceptance at draft positions 2, 3, … of the roll-outs. A single step has too few roll-outs for
  // a mean of its own.
  std::vector<double> deeper_;
  double rate_scale_ = 1, elapsed_before_ = 0, started_ = 0, session_step_seconds_ = 0, last_loss_ = 0;
  int evaluations_ = 0;  // the next evaluation is due when evaluations_due() reaches this number
  std::vector<Measured> measured_;
};

}  // namespace specdec::distill
