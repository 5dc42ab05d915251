// Tells tests where the source tree lies. This is a function of a generated file and no macro of the command line,
// because ccache would compile every test again in another clone.
#pragma once

#include <string>

namespace specdec {

// Returns the absolute path of the root of the source tree.
std::string source_folder();

}  // namespace specdec
