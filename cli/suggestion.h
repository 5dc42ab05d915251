// Suggests the name that was meant by a mistyped command, flag or key of a settings file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace specdec::cli {

// Returns the name of `known` that is most like `word`, or "" if none is. Letters that are left out, added, replaced or
// swapped with their neighbour count as one mistake each (optimal string alignment). At most one mistake per three
// letters of the word, rounded up, is allowed. Case does not count, and '_' equals '-'. If no name is that similar but
// `word` is the beginning of exactly one name, returns this name.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace specdec::cli
