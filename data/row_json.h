// One row of a log as JSON, several times faster than base/json.h alone: logs come in gigabytes.
#pragma once

#include <string_view>

#include "base/json.h"

namespace specdec::data {

inline constexpr int kMaxRowDepth = 64;

// The same values and the same errors as parse_json(text, "row", kData, {text.size(), kMaxRowDepth}), but for tools and
// tool_calls: arrays under these keys are JSON as text, their keys in the order of the row, in rows up to 1 MiB. Rows
// are read by simdjson, and what it refuses is read again by the parser that words the error. Memory: at most 16 bytes
// a byte of the longest row up to 1 MiB.
Json parse_row_json(std::string_view text);

}  // namespace specdec::data
