// The merges of byte pair encoding that give the tokens of llama.cpp's SentencePiece tokenizer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/gguf/vocabulary.h"

namespace specdec::gguf {

// llama.cpp joins two neighbours of a text if together they are a token, first those with the highest score. The same
// merges as a list: every division of every token into two tokens, ordered by the token's score. (transformers'
// convert_slow_tokenizer.py makes this list, too.) Throws Error(kModel) if the scores are missing or two tokens that
// can be joined have the same score, because their order then depends on the text, and for more than 2^22 merges.
std::vector<std::pair<std::string, std::string>> sentencepiece_merges(const GgufFile& file,
                                                                      const Vocabulary& vocabulary);

}  // namespace specdec::gguf
