// Finds what somebody meant who mistyped the name of a command, a flag or a key of a settings file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace specdec::cli {

// Returns the name of `known` that is most like `word`, or "" if none is. Letters that are left out, added, replaced or
// swapped with their neighbour count one mistake each (optimal string alignment); a third of the word may be mistaken.
// Case and '_' instead of '-' are no mistakes. A word that begins exactly one name means that name.
std::string nearest(std::string_view word, const std::vector<std::string>& known);

}  // namespace specdec::cli
