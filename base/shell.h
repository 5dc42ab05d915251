// Commands as people paste them into a shell.
#pragma once

#include <string>
#include <vector>

namespace specdec {

// The words with a space between them, in single quotes where a shell would read anything into them.
std::string shell_words(const std::vector<std::string>& words);

// The text on one line: control characters, which a terminal would obey, are spaces.
std::string one_line(std::string text);

}  // namespace specdec
