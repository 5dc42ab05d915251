// Suggests the one command to run next after a verdict.
#pragma once

#include <string>

#include "base/verdict.h"
#include "monitor/facts/options.h"

namespace specdec::monitor {

// Returns a shell command without secrets: a URL with a secret is replaced by @FILE.
std::string next_command(const CheckOptions& options, Verdict verdict);

}  // namespace specdec::monitor
