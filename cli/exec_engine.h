// Finds specdec-engine and the libraries that it needs to start.
#pragma once

#include <filesystem>

#include "cli/command.h"

namespace specdec::cli {

// Returns the path of specdec-engine. In an installed tree it also adds LibTorch to this process's library path. Throws
// Error(kConfig) if either is missing.
std::filesystem::path prepare_engine(const Global& global);

}  // namespace specdec::cli
