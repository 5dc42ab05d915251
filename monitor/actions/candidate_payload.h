// Describes a candidate's package and its channels for the state file, so that its actions can still be done after a
// restart. All actions on candidates use it.
#pragma once

#include <string>

#include "base/json.h"
#include "monitor/facts/options.h"

namespace specdec::monitor {

// Returns {store, candidates, channel, digest}, and also {draft, id} if package_in() finds the package. Throws what
// package_in() throws.
Json candidate_payload(const CheckOptions& options, const std::string& digest);

}  // namespace specdec::monitor
