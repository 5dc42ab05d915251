// Suggests the one command to run next after a verdict.
#pragma once

#include <string>

#include "base/verdict.h"
#include "monitor/facts/options.h"

namespace specdec::monitor {

// Returns a line for a shell. It holds no secret: for a URL with a secret it says @FILE.
std::string next_command(const CheckOptions& options, Verdict verdict);

}  // namespace specdec::monitor
