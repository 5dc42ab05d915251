// Where specdec-engine lies and what it needs to start.
#pragma once

#include <filesystem>

#include "cli/command.h"

namespace specdec::cli {

// Path of specdec-engine; in an installed tree the library path of this process gets the LibTorch it needs. Throws
// Error(kConfig) where there is none.
std::filesystem::path prepare_engine(const Global& global);

}  // namespace specdec::cli
