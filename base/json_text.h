// Tells JSON that a limit refuses from text that is no JSON.
#pragma once

#include <string_view>

namespace specdec {

// Returns whether the text is one JSON value by the grammar of RFC 8259 alone: of any depth and size, with any keys,
// and with numbers and escapes that parse_json (base/json.h) refuses. A text that was cut off is none. Never recurses.
bool is_json_text(std::string_view text);

}  // namespace specdec
