// Collects cheap facts about a text with vector instructions. These facts rule out most detectors for most texts, so
// that the patterns of these detectors need not run.
#pragma once

#include <cstddef>
#include <string_view>

namespace specdec::data {

struct TextFacts {
  size_t digits = 0, colons = 0;
  bool at_sign = false;
  bool run = false;      // contains 14 or more characters [A-Za-z0-9_+,./-] in a row, as keys and tokens do
  bool foreign = false;  // contains a '%' or a character beyond ASCII, so normalise() may change the text
};
TextFacts count_facts(std::string_view text);

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_run_character(char c);  // [A-Za-z0-9_+,./-]
bool is_word(char c);           // [A-Za-z0-9_]

// Returns the position of the first digit from `i` on, or text.size().
size_t first_digit(std::string_view text, size_t i);
// Returns the position of the next window of 256 bytes, from `i` on, that contains a run of 14 or more run characters;
// text.size() if there is none. All runs between `i` and that window are shorter.
size_t next_run_window(std::string_view text, size_t i);

}  // namespace specdec::data
