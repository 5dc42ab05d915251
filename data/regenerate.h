// `data regenerate`: has the target rewrite the last answer of every row, through an OpenAI-compatible endpoint. A
// draft must imitate the target it serves, not whoever wrote the logs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/progress.h"
#include "base/schema/shard_index.h"
#include "data/options.h"

namespace specdec::data {

struct RegenerateResult {
  ShardIndex index;
  std::string model;   // name of the model at the endpoint
  int64_t rows = 0;    // number of input rows
  int64_t asked = 0;   // answers fetched in this run
  int64_t reused = 0;  // answers of an earlier run, reused by --resume
};

// A row's prompt tokens[0, prompt_tokens) is sent as token ids to POST /completions with return_token_ids. The new row
// is prompt + answer; only the answer is learnt, and EOS is added if the target ended by itself and the endpoint left
// it out. With an endpoint that returns text only, options.target must give the tokenizer. Split, order and ids stay
// the same. Sampling uses --temperature, else the row's own temperature, else 1; the seed of a row depends only on
// --seed and its id, so the order of the answers does not matter. Every answer is durable in "<out>.progress.jsonl"
// before it counts; the file is removed when `out` has been published.
// Rejected rows: http_400, http_413, http_422, no_room (prompt fills max_length), empty_answer.
// Throws Error(kUsage) if a progress file exists without --resume or was made with other settings, and for 401, 403 and
// 404 of the endpoint; Error(kData) if the tokenizer is not the data's, or if there are neither token ids nor
// options.target; Error(kNetwork) if the endpoint is down or a stop was requested. `sleep` replaces the waiting between
// attempts (tests).
RegenerateResult regenerate(const RegenerateOptions& options, const ProgressFn& progress,
                            const std::function<void(double)>& sleep = {});

std::filesystem::path progress_file(const std::filesystem::path& out);

}  // namespace specdec::data
