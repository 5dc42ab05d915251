// Parses one row of a log as JSON, several times faster than base/json.h alone, because logs are gigabytes long.
#pragma once

#include <string_view>

#include "base/json.h"

namespace specdec::data {

inline constexpr int kMaxRowDepth = 64;

// Returns the values and throws the errors of parse_json(text, "row", kData, {text.size(), kMaxRowDepth}), except for
// tools and tool_calls: in rows up to 1 MiB, arrays under these keys become JSON text with the keys in the order of the
// row. simdjson parses these rows; if it refuses a row, parse_json parses it again and words the error.
// Memory: at most 16 bytes per byte of the longest row up to 1 MiB.
Json parse_row_json(std::string_view text);

}  // namespace specdec::data
