// Chooses the requests of a validation.
#pragma once

#include <cstdint>
#include <vector>

#include "base/schema/shard_index.h"

namespace specdec::deploy {

// Returns the rows with their conversations in random order, so that scoring may stop after any conversation. Returns
// at most the first `limit` rows of that order; 0 = all.
std::vector<TokenRow> shuffled(std::vector<TokenRow> rows, int64_t limit, uint64_t seed);

// Returns up to `count` rows for timed and compared answers, as choose_prompts() chooses them.
std::vector<TokenRow> pick(const std::vector<TokenRow>& rows, int64_t count);

}  // namespace specdec::deploy
