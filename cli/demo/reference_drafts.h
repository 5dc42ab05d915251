// Writes two drafts that every real one must beat, as ordinary Llama directories so that the gate measures them like
// any other draft: a bigram model fitted to the traffic, and an untrained one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/json.h"

namespace specdec::cli {

// q(y | x) = (count(x, y) + κ·u(y)) / (count(x) + κ), where u is the smoothed unigram distribution and κ = 1. It counts
// the learnt tokens in the train split of `data`. As a Llama, the embedding is the identity, the only layer adds
// nothing (its output projections are zero), and the output matrix holds log q. Tokenizer files are copied from
// `target`.
void write_bigram_draft(const std::filesystem::path& data, const std::filesystem::path& target,
                        const std::filesystem::path& out);

// Writes a draft of the shape of `target` with one layer and weights normal(0, 0.02) by Philox.
void write_untrained_draft(const std::filesystem::path& target, uint64_t seed, const std::filesystem::path& out);

}  // namespace specdec::cli
