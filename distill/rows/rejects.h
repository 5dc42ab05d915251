// Draft tokens that the target rejected in production, as `serve --record-rejects` recorded them with their positions.
// A draft has most to learn at these positions, so they may have a larger weight in the loss (Liu et al. 2024, Online
// Speculative Decoding, arXiv 2310.07177, trains only on them).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/shard_index.h"

namespace specdec::distill {

struct Rejects {
  // For each row, ascending indices of the tokens (with loss_mask 1) at which the target rejected the draft's token.
  std::vector<std::vector<int32_t>> tokens;
  // `records` is the number of records read. `absent` counts those whose answer is not among the rows, `other_text`
  // those whose row has another token at the recorded position.
  int64_t records = 0, absent = 0, other_text = 0;
  int64_t matched = 0;  // number of indices in `tokens`, over all rows
};

// Reads rejects-*.jsonl in `directory` or in its subdirectory `rejects`. A record matches a row if the ids are equal
// and the row has the record's tokens at the record's position. Throws Error(kUsage) if there is no such file,
// Error(kData) for a malformed line, Error(kIo).
Rejects read_rejects(const std::filesystem::path& directory, const std::vector<TokenRow>& rows);

Json to_json(const Rejects& rejects);  // the numbers of records and tokens, without the positions
// Returns the SHA-256 of the rejected positions of all rows. Records of conversations outside the data do not change
// it, so a run can be resumed while `serve` goes on recording.
std::string digest_of(const Rejects& rejects);

}  // namespace specdec::distill
