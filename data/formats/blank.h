// White space as JSON defines it, and its removal around a text.
#pragma once

#include <string_view>

namespace specdec::data {

inline constexpr std::string_view kBlank = " \t\r\n";

inline bool is_blank(std::string_view text) { return text.find_first_not_of(kBlank) == std::string_view::npos; }

// Returns the text without the white space around it.
inline std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

}  // namespace specdec::data
