// Chooses the tokens that a draft with a reduced vocabulary proposes, and measures how much of the traffic they cover.
// (engine/weights/draft_vocab.h runs such a draft.)
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/schema/shard_index.h"
#include "engine/config/config.h"

namespace specdec::distill {

// Returns `size` ids, ascending: EOS, BOS and padding of `config`, then the most frequent learnt tokens of `rows`
// (those with loss_mask 1), then the lowest ids, which are the commonest merges of a tokenizer. size is in [1,
// config.vocab_size].
std::vector<int32_t> choose_draft_vocab(const std::vector<TokenRow>& rows, int64_t size,
                                        const model::DecoderConfig& config);

// Returns the share of the learnt tokens that are in `draft_vocab`: {"value": x, "domains": {name: x}}; null where
// there are no tokens. Acceptance cannot exceed the target's probability mass on these ids, and this share estimates
// that mass from the text.
Json vocab_coverage(const std::vector<TokenRow>& rows, const std::vector<int32_t>& draft_vocab);

}  // namespace specdec::distill
