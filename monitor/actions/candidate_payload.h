// What is written down about a candidate's package and its channels, so that its actions can still be done after a
// restart.
#pragma once

#include <string>

#include "base/json.h"
#include "monitor/options.h"

namespace specdec::monitor {

// Returns {store, candidates, channel, digest}, and also {draft, id} if the store holds the package.
Json candidate_payload(const CheckOptions& options, const std::string& digest);

}  // namespace specdec::monitor
