// Chooses the tokens that a draft with a reduced vocabulary proposes, and measures how much of the traffic they cover.
// (engine/weights/draft_vocab.h has the part that runs such drafts.)
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/schema/shard_index.h"
#include "engine/config/config.h"

namespace specdec::distill {

// Chooses `size` ids, in this order of preference: EOS, BOS and padding of `config`, the most frequent tokens of `rows`
// with loss_mask 1, the lowest ids (a tokenizer's commonest merges). Returns them ascending. `size` is in [1,
// config.vocab_size].
std::vector<int32_t> choose_draft_vocab(const std::vector<TokenRow>& rows, int64_t size,
                                        const model::DecoderConfig& config);

// Returns the share of the tokens with loss_mask 1 that are in `draft_vocab`, in [0, 1], as {"value": x, "domains":
// {name: x}}; x is null if there are no such tokens. The share estimates the target's probability mass on these ids,
// which is an upper bound of acceptance.
Json vocab_coverage(const std::vector<TokenRow>& rows, const std::vector<int32_t>& draft_vocab);

}  // namespace specdec::distill
