// Commands as people paste them into a shell.
#pragma once

#include <string>
#include <vector>

namespace specdec {

// The words with a space between them, in single quotes where a shell would read anything into them.
std::string shell_words(const std::vector<std::string>& words);

// The text on one line, as it may be shown: what a terminal would obey or what would turn the order of its letters
// (control characters of ASCII and of Unicode, separators of lines, marks of direction) is a space each.
std::string one_line(std::string text);

}  // namespace specdec
