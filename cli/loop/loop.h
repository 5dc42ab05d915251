// `specdec loop run LOOP.toml`: data → regenerate → distill → validate → package → promote as child processes joined by
// files. A run is named after what goes in (target, logs, settings), so that the same trigger twice does the work once,
// and a killed run goes on where it was.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/command.h"

namespace specdec::cli {

struct LoopSettings {
  std::filesystem::path file;
  std::string target;             // MODEL
  std::vector<std::string> logs;  // files, directories or globs, relative to the file
  std::filesystem::path work, store;
  std::string channel = "production", draft = "prune:1";
  std::string regenerate = "auto";                              // auto | always | never
  double cooldown_s = 86400;                                    // after a verdict that stopped a run
  int64_t keep = 3;                                             // runs
  std::map<std::string, std::vector<std::string>> stage_flags;  // "data" → {"--holdout", "0.1", …}
};

// Throws Error(kConfig) for unknown keys and missing ones, Error(kData) for logs that are not there.
LoopSettings read_loop_settings(const std::filesystem::path& file);

struct LoopOrder {
  bool plan = false;   // say what would run, write nothing
  bool force = false;  // whatever an earlier verdict said
};

// Runs what is left to do. Returns 0 when the package is promoted, else the failing stage's exit code; 75 while an
// earlier verdict cools.
int run_loop(const Global& global, const LoopSettings& settings, const LoopOrder& order = {});

}  // namespace specdec::cli
