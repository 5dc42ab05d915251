// `specdec loop run LOOP.toml`: data → distill → validate → package → promote as child processes joined by files. A run is named
// after what goes in (target, logs, settings), so that the same trigger twice does the work once, and a killed run goes on
// where it was.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/command.h"

namespace specdec::cli {

struct LoopSettings {
  std::filesystem::path file;
  std::string target;                       // MODEL directory
  std::vector<std::string> logs;            // files, directories or globs, relative to the file
  std::filesystem::path work, store;
  std::string channel = "production", draft = "prune:1";
  std::map<std::string, std::vector<std::string>> stage_flags;  // "data" → {"--holdout", "0.1", …}
};

// Throws Error(kConfig) for unknown keys and missing ones.
LoopSettings read_loop_settings(const std::filesystem::path& file);

// Runs what is left to do. Returns 0 when the package is promoted, else the failing stage's exit code.
int run_loop(const Global& global, const LoopSettings& settings);

}  // namespace specdec::cli
