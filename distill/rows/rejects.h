// Draft tokens that the target rejected in production, with their positions, as `serve --record-rejects` recorded them.
// A draft has most to learn at these positions, so the loss may give them a larger weight (Liu et al. 2024, Online
// Speculative Decoding, arXiv 2310.07177, trains on these positions only).
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
  // `records` is the number of records read. `absent` counts the records whose answer is not among the rows.
  // `other_text` counts the records whose row has another token at a recorded position.
  int64_t records = 0, absent = 0, other_text = 0;
  int64_t matched = 0;  // number of indices in `tokens`, over all rows
};

// Reads rejects-*.jsonl in `directory` or in its subdirectory `rejects`. A record matches the row that has the same id,
// if the row also has the record's tokens at the recorded positions. Throws Error(kUsage) if there is no such file,
// Error(kData) for a malformed line, Error(kIo).
Rejects read_rejects(const std::filesystem::path& directory, const std::vector<TokenRow>& rows);

Json to_json(const Rejects& rejects);  // the numbers of records and tokens, without the positions
// Returns the SHA-256 of the rejected positions of all rows. Records of conversations outside the data do not change
// the digest, so a run can be resumed while `serve` goes on recording.
std::string digest_of(const Rejects& rejects);

}  // namespace specdec::distill
