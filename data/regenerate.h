// `data regenerate`: the last answer of every row written anew by the target, through an OpenAI-compatible endpoint. A
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
  std::string model;   // name at the endpoint
  int64_t rows = 0;    // of the input
  int64_t asked = 0;   // answers fetched in this run
  int64_t reused = 0;  // answers of an earlier run (--resume)
};

// A row's prompt tokens[0, prompt_tokens) is sent as token ids to POST /completions with return_token_ids; the new row
// is prompt + answer, the answer alone is learnt, and EOS is added where the target ended by itself and the endpoint
// left it out. An endpoint that returns text only needs options.target for the tokenizer. Split, order and ids stay.
// Sampling: --temperature, else the row's own, else 1; the seed of a row depends on --seed and its id alone, so the
// order of the answers does not matter. Every answer is durable in "<out>.progress.jsonl" before it counts; the file is
// removed when `out` has been published. Rejected rows: http_400, http_413, http_422, no_room (prompt fills
// max_length), empty_answer. Throws Error(kUsage): a progress file exists without --resume, or was made with other
// settings; 401, 403, 404 of the endpoint; Error(kData): another tokenizer than the data's, no token ids and no
// options.target; Error(kNetwork): endpoint down, stop request. `sleep` replaces waiting between attempts (tests).
RegenerateResult regenerate(const RegenerateOptions& options, const ProgressFn& progress,
                            const std::function<void(double)>& sleep = {});

std::filesystem::path progress_file(const std::filesystem::path& out);

}  // namespace specdec::data
