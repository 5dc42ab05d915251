// The version of the program, as the file VERSION at the root says.
#pragma once

namespace specdec {

extern const char* const kToolVersion;  // such as "0.2.0"

}  // namespace specdec
