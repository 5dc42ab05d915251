// What a run has before its first step: its options, the target and the teacher, the data, and where they are checked.
#pragma once

#include <memory>
#include <optional>

#include "base/file_lock.h"
#include "distill/rows/batcher.h"
#include "distill/rows/rejects.h"
#include "distill/run/compute_dtype.h"
#include "distill/run/draft_init.h"
#include "distill/run/heads.h"
#include "distill/run/preparation.h"
#include "distill/settings/options.h"
#include "distill/settings/time_plan.h"
#include "distill/teacher/divided_target.h"
#include "distill/teacher/open_teacher.h"
#include "distill/train/contexts.h"
#include "distill/train/evaluate.h"
#include "engine/forward/memory_plan.h"
#include "engine/parallel/ranks.h"

namespace specdec::distill {

// The loaded target and data, and the options with some defaults filled in.
struct Setup {
  DistillOptions options, asked;  // `asked` are those that were given
  std::optional<TimePlan> time;   // of this process
  DraftSpec spec;
  TeacherSpec from;
  bool ce = false;
  const HeadKind* head = nullptr;  // null: the draft is a decoder
  // The target; null if its layers are not needed. With `divided`, it has only the parts around the layers: norm and
  // head, and also the embedding if the draft is a head.
  std::shared_ptr<const model::Decoder> target;
  std::shared_ptr<DividedTarget> divided;             // null: every rank has the whole target
  std::optional<model::DecoderConfig> target_config;  // empty: cross entropy alone
  std::unique_ptr<TeacherSource> teacher;             // null: cross entropy alone
  std::optional<Fingerprint> target_id;               // empty if the target has no weights
  PreparedRows train;
  Rejects rejects;                                   // of the training rows; empty without --rejects
  std::shared_ptr<const DirectoryLock> data_in_use;  // keeps others from replacing the data
  HeldOut held_out;
  int64_t holdout_rows = 0, held_out_conversations = 0;  // of the half that judges, before --time-limit cuts it
  RowLimits limits;                                      // of held-out rows
  bool answers_anew = false;                             // the target answers the held-out prompts
  Json given;                                            // the options that --resume compares
  std::optional<std::string> begun_dtype;                // of the run that --resume goes on with, as run.json has it
  ComputeDtype compute;                                  // options.device.dtype is its flag once the target is loaded
  at::ScalarType published = at::kFloat;                 // of the weights in RUN/draft
  Json inputs, data_counts;
  // What the time limit leaves for training, and the steps that it is worth; 0 = no limit, or not known.
  double training_seconds = 0;
  int64_t expected_steps = 0;
  bool shares_optimizer = false;  // the ranks share the optimizer's state
  int64_t spare_bytes = 0;        // that the memory plan leaves
  at::Device device = at::kCPU;
  const parallel::Ranks* ranks = nullptr;
};

// Returns the rows of a share of the conversations, in their order: those with the smallest hashes of seed and
// conversation, at least one row.
std::vector<TokenRow> sample_rows(std::vector<TokenRow> rows, double share, uint64_t seed);
// Reads options, kind of draft, teacher and loss, and the target's configuration where the run needs one. Nothing is
// loaded. Throws Error(kUsage) if they do not fit each other.
Setup begin_setup(const DistillOptions& options);
// If options.out has a run that goes on, takes over what that run has settled: its dtype, and the text on which drafts
// are measured. Versions without --contexts measured all runs on the data's own answers.
void take_over_options(Setup& setup);
// Loads the target as far as the run needs it, and computes its fingerprint. With --teacher-parallel it divides the
// target among teams of ranks. Throws Error(kUsage) if the ranks, or the target, cannot be divided so.
void load_target(Setup& setup);
// Return the configuration of the draft (of a head, that of its layers; for prune, the target's), and what is known of
// a head. Throw Error(kModel | kUsage).
model::DecoderConfig draft_config(const Setup& setup);
HeadKind::Plan head_plan(const Setup& setup);
// Throws Error(kData | kModel | kUsage) unless the draft can learn from this target on data with this index. Returns
// how many tokens of a row both models take.
int64_t check_fit(const Setup& setup, const model::DecoderConfig& draft, const ShardIndex& data);
// Reads the rows and opens the teacher. Throws Error(kData | kModel | kUsage) if data, target and draft do not fit.
void load_data(Setup& setup, const model::DecoderConfig& draft, Stages& stages);
// Plans the memory of one rank's training, with the state of the optimizer shared by the ranks or not.
model::MemoryPlan memory_plan(const Setup& setup, const model::DecoderConfig& draft, bool shares_optimizer);
// Sets shares_optimizer if that was asked for, or if the run does not fit into memory otherwise. Throws
// Error(kDevice | kIo) if the run does not fit into memory or on the disk. All ranks call it.
void plan_memory(Setup& setup, const model::DecoderConfig& draft);

}  // namespace specdec::distill
