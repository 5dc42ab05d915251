// The one command to run next, after a verdict.
#pragma once

#include <string>

#include "base/verdict.h"
#include "monitor/options.h"

namespace specdec::monitor {

// A line for a shell, which holds no secret: a URL that does is to be given as @FILE.
std::string next_command(const CheckOptions& options, Verdict verdict);

}  // namespace specdec::monitor
