// Writes two baseline drafts that every useful draft must beat: a bigram model fitted to the traffic, and an untrained
// model. Both are ordinary Llama directories, so the gate measures them like any other draft.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json.h"

namespace specdec::cli {

// Writes a bigram draft: q(y | x) = (count(x, y) + κ·u(y)) / (count(x) + κ), where u is the smoothed unigram
// distribution and κ = 1. Only tokens with loss in the train split of `data` are counted. In the Llama layout the
// embedding is the identity, the only layer adds nothing (its output projections are zero), and the output matrix holds
// log q. Tokenizer files are copied from `target`.
void write_bigram_draft(const std::filesystem::path& data, const std::filesystem::path& target,
                        const std::filesystem::path& out);

// Writes an untrained draft: `target`'s dimensions with one layer, and weights drawn from a normal distribution (mean
// 0, standard deviation 0.02) with Philox. The weights of the norms are 1.
void write_untrained_draft(const std::filesystem::path& target, uint64_t seed, const std::filesystem::path& out);

}  // namespace specdec::cli
