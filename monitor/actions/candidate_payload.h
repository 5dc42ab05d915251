// Actions on a candidate are done after a restart, too: this is written down of the package and its channels.
#pragma once

#include <string>

#include "base/json.h"
#include "monitor/options.h"

namespace specdec::monitor {

// Returns {store, candidates, channel, digest}, and {draft, id} while the store holds the package.
Json candidate_payload(const CheckOptions& options, const std::string& digest);

}  // namespace specdec::monitor
