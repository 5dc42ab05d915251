// Checks a loop before it begins, so that a mistake is reported at once and not hours later, when the affected stage
// starts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/loop/loop.h"

namespace specdec::cli {

// Parses the arguments of a stage as its command does, without running it. Throws Error(kConfig) that names LOOP.toml
// and the stage's table.
void check_stage(const LoopSettings& settings, const std::string& stage, const std::vector<std::string>& arguments);

// Checks that `work` and `store` are writable and that the draft can be derived from the target in directory `target`.
// The errors name LOOP.toml and the key.
void check_places(const LoopSettings& settings, const std::filesystem::path& target);

}  // namespace specdec::cli
