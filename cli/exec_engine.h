// Finds specdec-engine and the libraries that it needs to start.
#pragma once

#include <filesystem>

#include "cli/command.h"

namespace specdec::cli {

// Returns the path of specdec-engine, without checking that the file exists. Adds LibTorch to the library path of this
// process, unless this is a build tree whose own LibTorch this user can read and SPECDEC_TORCH_LIB is not set. Throws
// Error(kConfig) if LibTorch is not found.
std::filesystem::path prepare_engine(const Global& global);

}  // namespace specdec::cli
