// Runs all of `specdec distill`: loads model and data, makes the initial draft, trains it, keeps the best measured
// checkpoint, judges that checkpoint on held-out rows that influenced no choice, and writes RUN/draft and
// RUN/result.json.
#pragma once

#include <filesystem>

#include "base/clock.h"
#include "base/json.h"
#include "base/progress.h"
#include "distill/settings/options.h"
#include "engine/parallel/ranks.h"

namespace specdec::distill {

struct DistillResult {
  Json json;          // schema "specdec.distill/1", as written to RUN/result.json
  int exit_code = 0;  // improved 0, no_significant_gain 3, inconclusive 4
};

// Throws Error(kUsage) unless RUN (options.out) is new or empty, or has a run of this command and `resume` is set.
void check_output(const DistillOptions& options);

// Makes every check that needs no loaded weights, no network and no output: the options fit each other, and the draft
// (with `compared`, each kind of draft) can learn from this target on this data. Call it before expensive work that
// precedes a run, such as labelling by an endpoint. Throws what run() would throw.
void check_request(const DistillOptions& options);

// Runs a distillation in the directory RUN = options.out. RUN holds run.json (options and inputs, compared on resume),
// checkpoints/, metrics.jsonl, events.out.tfevents.*, draft/ (Hugging Face directory with specdec.json) and
// result.json. A new run that fails before its first checkpoint leaves no RUN.
// With several ranks, every rank must call run() with the same options. Rank 0 alone writes to RUN, reports progress
// and returns the result's JSON; the other ranks return its exit code.
// Throws what check_output() throws; Error(kUsage) if RUN was made with other options or inputs (the message lists the
// keys); Error(kData) for shards of another tokenizer or token ids outside the vocabulary; Error(kModel | kConfig | kIo
// | kDevice); Error(kNetwork), which means "run it again", when a signal stops the run (training saves a checkpoint
// first) or while another process works in RUN.
DistillResult run(const DistillOptions& options, const ProgressFn& progress, const Clock& clock,
                  const parallel::Ranks& ranks = parallel::Ranks::alone());

}  // namespace specdec::distill
