// Finds specdec-engine and the libraries that it needs to start.
#pragma once

#include <filesystem>

#include "cli/command.h"

namespace specdec::cli {

// Returns the path of specdec-engine. Adds LibTorch to the library path of this process, unless the engine finds it
// itself (a build tree, a wheel) and SPECDEC_TORCH_LIB is not set. Throws Error(kConfig) if there is no engine, as in
// the wheel specdec-core, or if LibTorch is not found.
std::filesystem::path prepare_engine(const Global& global);

// Returns the torch/lib that prepare_engine() would add; "" if the engine finds LibTorch itself, or there is none.
std::filesystem::path torch_of_environment(const Global& global);

}  // namespace specdec::cli
