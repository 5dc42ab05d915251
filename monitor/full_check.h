// `monitor check --full`: every byte of a local target's weights (tier 4), where the fingerprint samples large tensors.
// Read again only after somebody wrote to the files.
#pragma once

#include <filesystem>
#include <string>

#include "monitor/target_watch.h"

namespace specdec::monitor {

// The reference is the package's own copy (`packaged`, "" = it only refers to its target), else what is served at the
// first such check. `memory`: that of the call before, "" the first time; another package begins anew. Throws
// Error(kModel), Error(kIo), Error(kData) for a memory that is none.
TargetCheck check_every_byte(const WatchedPair& pair, const std::filesystem::path& packaged,
                             const std::filesystem::path& served, const std::string& memory);

}  // namespace specdec::monitor
