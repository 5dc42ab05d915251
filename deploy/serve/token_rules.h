// From texts and grammars to the rules of decode: text/ may not know of decode, nor decode of text; here they meet.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/decode/logits_processors.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace specdec::deploy {

// The ways a text is most likely spelt in the middle of an answer: as it is, and with a space before it where that
// makes other tokens of the same number (vLLM's rule). Other spellings stay possible. Empty for a text without tokens.
std::vector<std::vector<int32_t>> bad_word_tokens(const text::Tokenizer& tokenizer, const std::string& word);

// For LogitsProcessors::constraint: a matcher a sequence.
std::function<std::unique_ptr<decode::Constraint>()> constraint_of(std::shared_ptr<const text::Grammar> grammar);

}  // namespace specdec::deploy
