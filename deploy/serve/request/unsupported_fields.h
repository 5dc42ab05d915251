// The table of the request fields that OpenAI, vLLM and others know and this server does not offer. A client that sends
// one is told so by its name; a field that was dropped silently would change what the answer means. Fields that are
// neither here nor read by parse_request() are ignored, as OpenAI's clients expect.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "deploy/serve/request/request_numbers.h"

namespace specdec::deploy {

struct UnsupportedField {
  std::string name;                   // "PARENT.NAME" is a member of an object
  std::optional<Endpoint> only = {};  // none: both endpoints refuse it
  // The values that the server applies anyway. Null and a missing field are always taken.
  std::vector<Json> defaults = {};
  bool in_prompt = false;  // it would change the prompt's tokens, so /tokenize refuses it, too
  bool or_n = false;       // the value of n is taken as well
};

std::span<const UnsupportedField> unsupported_fields();

// Throw Rejected for the first field of the table that the body contains with another value than its defaults. The
// second considers only the fields that would change the prompt.
void refuse_unsupported(const Json& body, Endpoint endpoint, int64_t n);
void refuse_unsupported_in_prompt(const Json& body, Endpoint endpoint);

}  // namespace specdec::deploy
