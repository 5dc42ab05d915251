// Loads and checks what a run needs before its first step: options, target, teacher and data.
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
  DistillOptions options, asked;  // `asked`: the options as the user gave them
  std::optional<TimePlan> time;   // the time limit of this process, divided among preparing, training and judging
  DraftSpec spec;
  TeacherSpec from;
  bool ce = false;
  const HeadKind* head = nullptr;  // null: the draft is a decoder
  // The target; null if the run needs none of its weights. With `divided` the target has no layers, only the final
  // norm, the output head and, if the draft is a head, the embedding.
  std::shared_ptr<const model::Decoder> target;
  std::shared_ptr<DividedTarget> divided;             // null: every rank has the whole target
  std::optional<model::DecoderConfig> target_config;  // empty: the loss is cross entropy only
  std::unique_ptr<TeacherSource> teacher;             // null: only the cross entropy is measured and learnt
  std::optional<Fingerprint> target_id;               // empty if the target has no weights
  PreparedRows train;
  Rejects rejects;  // rejected draft tokens in the training rows; empty without --rejects
  std::shared_ptr<const DirectoryLock> data_in_use;  // keeps other processes from replacing the data
  HeldOut held_out;
  // The number of held-out rows, and the number of conversations held out for judging the draft (verdict half), before
  // a time limit reduces both.
  int64_t holdout_rows = 0, held_out_conversations = 0;
  RowLimits limits;                        // largest length of a held-out row, and its first token that is scored
  bool answers_anew = false;               // the target generates new answers to the held-out prompts
  Json given;                              // the options that --resume compares with run.json
  std::optional<std::string> begun_dtype;  // dtype in run.json of the run that --resume continues; empty = new run
  ComputeDtype compute;                    // options.device.dtype is set to compute.flag when the target is loaded
  at::ScalarType published = at::kFloat;   // dtype of the weights in RUN/draft
  bool as_served = false;                  // the target is in this process and answers as it serves (as_served.h)
  Json inputs, data_counts;
  // The seconds that the time limit leaves for training (0 = no time limit), and the estimated number of steps in them
  // (0 = unknown).
  double training_seconds = 0;
  int64_t expected_steps = 0;
  bool shares_optimizer = false;  // the optimizer state is divided among the ranks
  int64_t spare_bytes = 0;        // bytes that the memory plan leaves unused
  at::Device device = at::kCPU;
  const parallel::Ranks* ranks = nullptr;
};

// Keeps the fraction `share` of the rows, at least one row: the first rows in the order of the hash of (seed,
// conversation). Returns them in their original order.
std::vector<TokenRow> sample_rows(std::vector<TokenRow> rows, double share, uint64_t seed);
// Parses the options (kind of draft, teacher, loss) and reads the target's configuration if the run needs it. Loads no
// weights. Throws Error(kUsage) if the options contradict each other.
Setup begin_setup(const DistillOptions& options);
// If options.out has a run to resume, takes over two of its settings: the dtype and the text on which drafts are
// measured (--contexts). Versions before --contexts measured all runs on the answers in the data.
void take_over_options(Setup& setup);
// Loads those parts of the target that the run needs, and computes the target's fingerprint. With --teacher-parallel N
// the target is divided among teams of N ranks. Throws Error(kUsage) if N does not divide the number of ranks or the
// target's shapes.
void load_target(Setup& setup);
// draft_config() returns the configuration of the draft; for a head that of its layers, for prune that of the target.
// head_plan() returns the plan of a head. Both throw Error(kModel | kUsage).
model::DecoderConfig draft_config(const Setup& setup);
HeadKind::Plan head_plan(const Setup& setup);
// Throws Error(kData | kModel | kUsage) unless the draft can learn from this target on the data whose index is `data`.
// Returns the greatest length of a row, in tokens, that both models accept.
int64_t check_fit(const Setup& setup, const model::DecoderConfig& draft, const ShardIndex& data);
// Reads the rows and opens the teacher. Throws Error(kData | kModel | kUsage) if data, target and draft do not fit.
void load_data(Setup& setup, const model::DecoderConfig& draft, Stages& stages);
// Plans the memory of training on one rank. If `shares_optimizer`, the optimizer state is divided among the ranks.
model::MemoryPlan memory_plan(const Setup& setup, const model::DecoderConfig& draft, bool shares_optimizer);
// Sets setup.shares_optimizer if the options ask for it, or if the run does not fit into memory otherwise. Throws
// Error(kDevice | kIo) if the run does not fit into memory or on the disk. A collective: every rank must call it.
void plan_memory(Setup& setup, const model::DecoderConfig& draft);

}  // namespace specdec::distill
