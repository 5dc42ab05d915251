// `monitor check --full` compares every byte of a local target's weights (tier 4); the fingerprint only samples large
// tensors. The files are read again only if they were written to.
#pragma once

#include <filesystem>
#include <string>

#include "monitor/facts/target_watch.h"

namespace specdec::monitor {

// Compares the served weights with a reference. The reference is the package's own copy in `packaged`; if `packaged` is
// "" because the package only refers to its target, the reference is the target served at the first such check.
// `memory` is what the previous call returned, "" the first time; with another package the check starts with a new
// reference. Throws Error(kModel), Error(kIo), and Error(kData) for a memory that cannot be read.
TargetCheck check_every_byte(const WatchedPair& pair, const std::filesystem::path& packaged,
                             const std::filesystem::path& served, const std::string& memory);

}  // namespace specdec::monitor
