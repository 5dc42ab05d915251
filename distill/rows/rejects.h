// What the target refused in production: `serve --record-rejects` keeps where in an answer the draft of that time was
// wrong. These positions say where a draft has most to learn, so they may weigh more in the loss (Liu et al. 2024,
// Online Speculative Decoding, arXiv 2310.07177, learns at them alone).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/shard_index.h"

namespace specdec::distill {

struct Rejects {
  // For each row, the indices of the learnt tokens at which the target refused a draft, ascending.
  std::vector<std::vector<int32_t>> tokens;
  // `records` were read. Of these, `absent` belong to answers that are not among the rows, and `other_text` to answers
  // that have another text there.
  int64_t records = 0, absent = 0, other_text = 0;
  int64_t matched = 0;  // tokens in all rows together
};

// Reads rejects-*.jsonl in `directory` or in its subdirectory `rejects`. Records and rows belong together by their id,
// and by the tokens that the record names. Throws Error(kUsage) if there is no such file, Error(kData) for a malformed
// line, Error(kIo).
Rejects read_rejects(const std::filesystem::path& directory, const std::vector<TokenRow>& rows);

Json to_json(const Rejects& rejects);  // the figures
// Returns the SHA-256 of the refused tokens of all rows. Records of other conversations do not change it, so a run can
// be resumed while serve goes on recording.
std::string digest_of(const Rejects& rejects);

}  // namespace specdec::distill
