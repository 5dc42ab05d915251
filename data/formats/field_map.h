// The map that `--map` gives: which fields of a log in an unknown format hold the parts of a record. This file also
// suggests such a map from the keys of a row. Pure functions.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"

namespace specdec::data {

// Says in which field of a row each part of the record is. A field is a key of the row, or a.b for the key b inside a;
// "" = the row has no such field. The content is either prompt and answer, or messages; all other fields are optional.
struct FieldMap {
  std::string prompt, answer;
  std::string messages;  // a chat in the form of the format `chat`, including the answer
  std::string system;    // the system message, placed before the prompt or the messages
  std::string model, domain, time, conversation, tenant, temperature;

  bool empty() const { return prompt.empty() && messages.empty(); }
  // Returns whether `key` is the field of the prompt, the answer, the messages or the system message.
  bool holds_content(std::string_view key) const;
};

// Parses "prompt=question,answer=reply,time=meta.ts"; "" gives an empty map. Throws Error(kUsage) unless the map is
// complete, every key occurs once, and no metadata uses a field of the content.
FieldMap parse_field_map(const std::string& text);

// Returns what to tell the user about a row that no format recognises: the names of its keys (at most 16, no values,
// and no keys that look like text) and the --map that would read the row. If no key with a string value looks like the
// prompt or the answer, the suggested map has the placeholder FIELD in its place.
std::string describe_unknown_row(const Json& row);

}  // namespace specdec::data
