// Checks and counts UTF-8, because logs are bytes of unknown origin.
#pragma once

#include <cstdint>
#include <string_view>

namespace specdec {

bool is_valid_utf8(std::string_view text);        // Unicode 15, table 3-7: no overlong forms, no surrogates
int64_t count_characters(std::string_view utf8);  // Unicode code points

}  // namespace specdec
