// The table of request fields that OpenAI, vLLM or others know and this server does not support. A request with such a
// field is refused, and the error names the field; ignoring it would change the meaning of the answer. Fields that are
// neither in the table nor read by parse_request() are ignored, as OpenAI's clients expect.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "deploy/serve/request/request_numbers.h"

namespace specdec::deploy {

struct UnsupportedField {
  std::string name;                   // "PARENT.NAME" means a member of an object
  std::optional<Endpoint> only = {};  // none: applies to both endpoints
  // Values that are accepted, because they ask for what the server does anyway. Null and an absent field are always
  // accepted.
  std::vector<Json> defaults = {};
  bool in_prompt = false;  // the field would change the prompt's tokens, so /tokenize refuses it, too
  bool or_n = false;       // a value equal to the request's n is accepted, too
};

std::span<const UnsupportedField> unsupported_fields();

// Throw Rejected for the first field of the table that the body contains with a value other than its defaults.
// refuse_unsupported_in_prompt() checks only fields that change the prompt's tokens.
void refuse_unsupported(const Json& body, Endpoint endpoint, int64_t n);
void refuse_unsupported_in_prompt(const Json& body, Endpoint endpoint);

}  // namespace specdec::deploy
