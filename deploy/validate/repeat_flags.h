// Reconstructs the command line of a validation, for the command that a report suggests next.
#pragma once

#include <string>
#include <vector>

#include "deploy/validate/options.h"

namespace specdec::deploy {

// Returns the options that differ from the defaults, as flags for a command that repeats this measurement. --parts is
// left out, so that the repeated command measures all parts.
std::vector<std::string> repeat_flags(const ValidateOptions& options);

}  // namespace specdec::deploy
