// Makes the payload of actions on a candidate: its package and channels, recorded in the state file, so that the action
// can be done after a restart.
#pragma once

#include <string>

#include "base/json.h"
#include "monitor/facts/options.h"

namespace specdec::monitor {

// Returns {store, candidates, channel, digest}, and also {draft, id} if package_in() finds the package. Throws what
// package_in() throws.
Json candidate_payload(const CheckOptions& options, const std::string& digest);

}  // namespace specdec::monitor
