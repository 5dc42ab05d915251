// How a tokenizer.json divides text, as llama.cpp has it. A part of export_tokenizer.h.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"

namespace specdec::gguf {

// Returns tokenizer.ggml.pre for the pre-tokenizer of a byte-level tokenizer.json. Throws Error(kModel) for one that
// llama.cpp does not have.
std::string pre_of(const Json& tokenizer, const std::string& where);

// Returns tokenizer.ggml.add_space_prefix for a tokenizer.json with byte fallback: whether "▁" is put before the text.
// Throws Error(kModel) for a normaliser or pre-tokenizer that does anything but writing spaces as "▁".
bool adds_space_prefix(const Json& tokenizer, const std::string& where);

using Merges = std::vector<std::pair<std::string, std::string>>;
// Returns the merges of tokenizer.json in their order, from either form ("a b" or ["a", "b"]). Tokens may hold spaces
// only if `with_spaces` is true; files with byte-level merges have no place for them.
Merges merges_of(const Json& tokenizer, bool with_spaces, const std::string& where);

// Returns for each token of `vocabulary` that merges make its rank (other tokens are matched before merging): 0 for the
// token that is made first. Throws Error(kModel) if scores of tokens cannot express the merges: if the merges that make
// one token are not neighbours in the list, or if a token can be divided into two tokens that are not merged, which
// llama.cpp would merge.
std::unordered_map<std::string, int64_t> ranks_of(const Merges& merges,
                                                  const std::unordered_map<std::string, int64_t>& vocabulary,
                                                  const std::string& where);

}  // namespace specdec::gguf
