// The one command to run next, after a verdict.
#pragma once

#include <string>

#include "monitor/options.h"

namespace specdec::monitor {

// A line for a shell, which holds no secret: a URL that does is to be given as @FILE.
std::string next_command(const CheckOptions& options, const std::string& verdict);

}  // namespace specdec::monitor
