// Reads the fields of a request that constrain its answer to a JSON schema, a regular expression or a choice of texts.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "deploy/serve/request/limits.h"
#include "text/grammar.h"

namespace specdec::deploy {

// The grammar that the answer as a whole must match.
struct RequestedGrammar {
  text::GrammarKind kind = text::GrammarKind::kJsonSchema;
  std::string source;
  std::string param;  // the field that asked for it
};

// Returns the grammar that the request asks for, if any. `body` is the text that was parsed to `fields`; schemas are
// read from it with the keys of their objects in the order sent, because the answer follows that order. Throws Rejected
// for a malformed field and for more than one grammar.
std::optional<RequestedGrammar> read_grammar(std::string_view body, const Json& fields, const ServeLimits& limits);

}  // namespace specdec::deploy
