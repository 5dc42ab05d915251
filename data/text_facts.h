// Counts cheap facts about a text by vector instructions. With them, most detectors skip most texts without running
// their patterns.
#pragma once

#include <cstddef>
#include <string_view>

namespace specdec::data {

struct TextFacts {
  size_t digits = 0, colons = 0;
  bool at_sign = false;
  bool run = false;      // 14 or more characters [A-Za-z0-9_+,./-] in a row, which keys and tokens consist of
  bool foreign = false;  // contains a '%' or a character beyond ASCII, so normalise() may change the text
};
TextFacts count_facts(std::string_view text);

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_run_character(char c);  // [A-Za-z0-9_+,./-]
bool is_word(char c);           // [A-Za-z0-9_]

// Returns the position of the first digit from `i` on, or text.size().
size_t first_digit(std::string_view text, size_t i);
// Returns the begin of the next window of text, from `i` on, that contains 14 characters of a run, or text.size(). Runs
// before it are shorter.
size_t next_run_window(std::string_view text, size_t i);

}  // namespace specdec::data
