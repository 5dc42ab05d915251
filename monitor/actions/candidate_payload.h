// Makes the payload of an action on a candidate. The payload names the candidate's package and channels and is recorded
// in the state file, so that the action can still be done after a restart.
#pragma once

#include <string>

#include "base/json.h"
#include "monitor/facts/options.h"

namespace specdec::monitor {

// Returns {store, candidates, channel, digest}, and also {draft, id} if package_in() finds the package. Throws what
// package_in() throws.
Json candidate_payload(const CheckOptions& options, const std::string& digest);

}  // namespace specdec::monitor
