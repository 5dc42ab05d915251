// Tells tests where the source tree is. The path comes from a generated source file instead of a compiler flag, because
// a flag would make ccache compile every test again in another clone.
#pragma once

#include <string>

namespace specdec {

// Returns the absolute path of the root of the source tree.
std::string source_folder();

}  // namespace specdec
