// `monitor check --full` compares every byte of a local target's weights, while the fingerprint only samples large
// tensors. The files are read again only if they have changed.
#pragma once

#include <filesystem>
#include <string>

#include "monitor/facts/target_watch.h"

namespace specdec::monitor {

// Compares the served weights with a reference. The reference is the package's own copy in `packaged`. If the package
// has no copy, `packaged` is "", and the reference is the target that was served at the first call. `memory` is what
// the previous call returned, "" the first time; with another package the reference is set anew. Throws Error(kModel),
// Error(kIo), and Error(kData) for a memory that cannot be read.
TargetCheck check_every_byte(const WatchedPair& pair, const std::filesystem::path& packaged,
                             const std::filesystem::path& served, const std::string& memory);

}  // namespace specdec::monitor
