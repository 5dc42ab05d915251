// The version of the program, from the file VERSION at the root.
#pragma once

namespace specdec {

extern const char* const kToolVersion;  // such as "0.2.0"

}  // namespace specdec
