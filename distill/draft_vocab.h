// Which tokens a draft of a reduced vocabulary proposes, and how much of the traffic they are
// (engine/model/draft_vocab.h runs it).
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "base/schema/shard_index.h"
#include "engine/model/config.h"

namespace specdec::distill {

// `size` ids, rising: EOS, BOS and padding of `config`, then the most frequent tokens to learn of `rows` (counted where
// loss_mask is 1), then the lowest ids, which are the commonest merges of a tokenizer. size in [1, config.vocab_size].
std::vector<int32_t> choose_draft_vocab(const std::vector<TokenRow>& rows, int64_t size,
                                        const model::DecoderConfig& config);

// Share of the tokens to learn that are among `draft_vocab`: {"value": x, "domains": {name: x}}; null without tokens.
// No acceptance can exceed the target's mass on these ids, of which this is the estimate from text.
Json vocab_coverage(const std::vector<TokenRow>& rows, const std::vector<int32_t>& draft_vocab);

}  // namespace specdec::distill
