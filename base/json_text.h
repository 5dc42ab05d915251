// Tells two cases apart: JSON that parse_json refuses because of a limit, and text that is not JSON at all.
#pragma once

#include <string_view>

namespace specdec {

// Returns whether the text is one JSON value by the grammar of RFC 8259 alone: of any depth and size, with any keys,
// and with numbers and escapes that parse_json (base/json.h) refuses. JSON that was cut off is not a JSON value. Never
// recurses.
bool is_json_text(std::string_view text);

}  // namespace specdec
