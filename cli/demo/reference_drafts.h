// Two drafts every real one has to beat, written as ordinary Llama directories so that the gate measures them like any
// other: a bigram model fitted on the traffic, and an untrained one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json.h"

namespace specdec::cli {

// q(y | x) = (count(x, y) + κ·u(y)) / (count(x) + κ), u the smoothed unigram distribution, κ = 1, counted over the
// tokens to learn of the train split of `data`. As a Llama: the embedding is the identity, the one layer adds nothing
// (its output projections are zero), the output matrix holds log q. Tokenizer files are copied from `target`.
void write_bigram_draft(const std::filesystem::path& data, const std::filesystem::path& target,
                        const std::filesystem::path& out);

// The shape of `target` with one layer, weights normal(0, 0.02) by Philox.
void write_untrained_draft(const std::filesystem::path& target, uint64_t seed, const std::filesystem::path& out);

}  // namespace specdec::cli
