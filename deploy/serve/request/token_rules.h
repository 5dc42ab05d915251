// Turns texts and grammars into logits rules. It is in deploy, because text/ and engine/decode may not depend on each
// other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/decode/sampling/logits_processors.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace specdec::deploy {

// Returns the likeliest token spellings of a text in the middle of an answer: the text itself, and the text after a
// space if this spelling has as many tokens and another first token (vLLM's rule). Other spellings stay possible.
// Returns none for a text without tokens.
std::vector<std::vector<int32_t>> bad_word_tokens(const text::Tokenizer& tokenizer, const std::string& word);

// Returns a factory for LogitsProcessors::constraint that makes one matcher per sequence.
std::function<std::unique_ptr<decode::Constraint>()> constraint_of(std::shared_ptr<const text::Grammar> grammar);

}  // namespace specdec::deploy
