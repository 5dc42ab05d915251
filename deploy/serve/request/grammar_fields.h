// Reads the request fields that constrain an answer to a JSON schema, a regular expression or a choice of texts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "deploy/serve/request/limits.h"
#include "text/grammar.h"

namespace specdec::deploy {

// The grammar that the whole answer must match.
struct RequestedGrammar {
  text::GrammarKind kind = text::GrammarKind::kJsonSchema;
  std::string source;
  std::string param;  // name of the field that contains the grammar
};

// Returns the grammar that the request asks for, if any. `body` is the text from which `fields` was parsed. Schemas are
// read from `body`, because an answer has its keys in the order in which the client sent them in the schema. Throws
// Rejected for a malformed field and for more than one grammar.
std::optional<RequestedGrammar> read_grammar(std::string_view body, const Json& fields, const ServeLimits& limits);

}  // namespace specdec::deploy
