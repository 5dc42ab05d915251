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

// Returns the likeliest tokenisations of a text in the middle of an answer: the text's own tokens, and those of the
// text after a space if they are as many and begin with another token (vLLM's rule). A model can still write the text
// with other tokens. Returns none for a text without tokens.
std::vector<std::vector<int32_t>> bad_word_tokens(const text::Tokenizer& tokenizer, const std::string& word);

// Returns a factory for LogitsProcessors::constraint, which makes one grammar matcher per sequence.
std::function<std::unique_ptr<decode::Constraint>()> constraint_of(std::shared_ptr<const text::Grammar> grammar);

}  // namespace specdec::deploy
