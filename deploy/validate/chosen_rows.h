// Chooses the requests that a validation measures.
#pragma once

#include <cstdint>
#include <vector>

#include "base/schema/shard_index.h"

namespace specdec::deploy {

// Returns the rows with their conversations in random order, so that scoring may stop after any conversation. If
// `limit` is not 0, returns only the first `limit` rows of that order.
std::vector<TokenRow> shuffled(std::vector<TokenRow> rows, int64_t limit, uint64_t seed);

// Returns up to `count` rows, chosen by choose_prompts(), for timed answers and for answers that are compared.
std::vector<TokenRow> pick(const std::vector<TokenRow>& rows, int64_t count);

}  // namespace specdec::deploy
