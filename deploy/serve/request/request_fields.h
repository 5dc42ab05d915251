// Reads the fields of a request body. Every function throws Rejected for a field of the wrong type; parse_request()
// turns Rejected into the error reply.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "deploy/serve/request/api_error.h"
#include "deploy/serve/request/request_numbers.h"

namespace specdec::deploy {

// The exception that refuses a request. parse_request() catches it, so it never reaches other code.
struct Rejected {
  ApiError error;
};

using OrderedJson = nlohmann::ordered_json;

[[noreturn]] void reject(const std::string& param, const std::string& expected);
[[noreturn]] void refuse(const std::string& param);  // for a known field that this server does not support

// Returns the value of a key; null if the key is absent or its value is null.
const Json* find_field(const Json& object, const char* key);

bool read_boolean(const Json& object, const char* key, const std::string& param, bool fallback = false);

// Reads text for the tokenizer or the chat template. Throws Rejected if it contains NUL.
std::string read_text(const Json& value, const std::string& param);

int64_t read_integer(const Json& value, const IntegerRange& range, const char* param);

// Returns the JSON text of a member of the object `body`, which must be well-formed JSON, or nothing if there is no
// such member. If the key occurs several times, the last member is taken, as in parse_json().
std::optional<std::string_view> raw_member(std::string_view body, std::string_view key);

// Parses a member of the body, keeping the order of keys in its objects. Returns null if the member is absent. Refuses
// a member of more than 1 MiB or with an object of more than 4096 keys.
OrderedJson ordered_member(std::string_view body, const std::string& key);

}  // namespace specdec::deploy
