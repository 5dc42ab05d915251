// `data regenerate`: lets the target rewrite the answers of every row, through an OpenAI-compatible endpoint. A draft
// must imitate its target, not whoever wrote the logs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include "base/progress.h"
#include "base/schema/shard_index.h"
#include "data/options.h"

namespace specdec::data {

struct RegenerateResult {
  ShardIndex index;
  std::string model;   // name of the model at the endpoint
  int64_t rows = 0;    // number of input rows
  int64_t asked = 0;   // rows answered in this run
  int64_t reused = 0;  // rows answered by an earlier run, reused by --resume
  int64_t turns = 0;   // new answers of all rows
  // Reason → number of rows that end before their last recorded answer (data/regenerate/row_regenerator.h).
  std::map<std::string, int64_t> ended;
};

// Writes the data directory options.data with new answers to options.out. Each learnt answer of a row is generated
// again, after the new answers before it; the text between the answers stays (data/regenerate/row_regenerator.h). Only
// the new answers are learnt. Split, order and ids stay the same.
// * Requests: a prompt is sent to POST /completions as token ids, with return_token_ids. options.target must give the
//   tokenizer if the endpoint returns only text, and to continue a row after an answer that calls functions. The
//   end-of-turn marker is added if the target ended the answer itself and the endpoint left the marker out.
// * Sampling: --temperature, else the row's own temperature, else 1. The seed of an answer depends only on --seed, the
//   row's id and the answer's number in the row, so the order in which answers arrive does not matter.
// * Resuming: each row is on disk in "<out>.progress.jsonl" before it counts as done; the file is removed when the
//   output has been published. OUT/regenerated.json keeps the settings: with options.resume, a finished run with equal
//   settings is returned as it is.
// * Rejects: OUT/rejects.jsonl names the rows that were rejected or that end early, with the endpoint's message. A row
//   is rejected as no_answer if the endpoint gives it an invalid reply, temporary errors in all attempts, or no reply,
//   while other rows are answered.
// Throws Error(kUsage) if a progress file exists without --resume or was made with other settings, for status 401, 403
// and 404 of the endpoint, and if the endpoint refuses the first 8 rows. Throws Error(kData) if the data has another
// tokenizer than options.target, or if the endpoint returns no token ids and options.target is empty. Throws
// Error(kNetwork), the kind that means "try again", if the endpoint is down, if 8 consecutive rows get no answer, or if
// a stop was requested. `sleep` replaces the waiting between attempts (for tests).
RegenerateResult regenerate(const RegenerateOptions& options, const ProgressFn& progress,
                            const std::function<void(double)>& sleep = {});

std::filesystem::path progress_file(const std::filesystem::path& out);

}  // namespace specdec::data
