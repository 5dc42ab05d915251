// `data regenerate`: has the target rewrite the last answer of every row, through an OpenAI-compatible endpoint. A
// draft must imitate its target, not whoever wrote the logs.
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

// Writes the data directory options.data with new answers to options.out. The prompt of a row, tokens[0,
// prompt_tokens), is sent to POST /completions as token ids, with return_token_ids. The new row is prompt + answer, and
// only the answer is learnt. EOS is added if the target ended by itself and the endpoint left it out. If the endpoint
// returns only text, options.target must give the tokenizer. Split, order and ids stay the same.
// Sampling uses --temperature, else the row's own temperature, else 1. The seed of a row depends only on --seed and its
// id, so the order of the answers does not matter. Each answer is on disk in "<out>.progress.jsonl" before it counts as
// done; the file is removed when the output has been published.
// Rejected rows: http_400, http_413, http_422, no_room (the prompt is empty or fills max_length), empty_answer.
// Throws Error(kUsage) if a progress file exists without --resume or was made with other settings, and for status 401,
// 403 and 404 of the endpoint; Error(kData) if the data has another tokenizer than options.target, or if the endpoint
// returns no token ids and options.target is empty; Error(kNetwork) if the endpoint is down or a stop was requested.
// `sleep` replaces the waiting between attempts (tests).
RegenerateResult regenerate(const RegenerateOptions& options, const ProgressFn& progress,
                            const std::function<void(double)>& sleep = {});

std::filesystem::path progress_file(const std::filesystem::path& out);

}  // namespace specdec::data
