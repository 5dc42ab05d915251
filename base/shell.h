// Formats commands that people paste into a shell, and text that is safe to show on a terminal.
#pragma once

#include <string>
#include <vector>

namespace specdec {

// Returns the words separated by spaces, in single quotes where a shell would interpret them.
std::string shell_words(const std::vector<std::string>& words);

// Returns the text on one line, safe to show on a terminal. Replaces by a space each character that controls a terminal
// or changes the direction of text (control characters of ASCII and Unicode, line separators, direction marks).
std::string one_line(std::string text);

}  // namespace specdec
