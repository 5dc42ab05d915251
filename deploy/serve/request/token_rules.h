// Converts texts and grammars into logits processors. This file is in deploy, because text/ and engine/decode must not
// depend on each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/decode/sampling/logits_processors.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace specdec::deploy {

// Returns the one or two token sequences with which a model is likeliest to write a word in the middle of an answer:
// the tokens of the word, and the tokens of a space and the word. As in vLLM, the second sequence is left out if it is
// longer or shorter than the first or begins with the same token. A model can still write the word with other tokens.
// Returns no sequence for a word without tokens.
std::vector<std::vector<int32_t>> bad_word_tokens(const text::Tokenizer& tokenizer, const std::string& word);

// Returns a factory for LogitsProcessors::constraint, which makes one grammar matcher per sequence.
std::function<std::unique_ptr<decode::Constraint>()> constraint_of(std::shared_ptr<const text::Grammar> grammar);

}  // namespace specdec::deploy
