// `specdec loop run LOOP.toml`: data → regenerate → distill → validate → package → promote, as child processes that
// communicate through files. A run is named after a digest of its target and logs, and each stage has a digest of its
// settings (cli/loop/runs.h). So a repeated trigger does not repeat the work, and a killed run resumes where it was.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/command_tree.h"

namespace specdec::cli {

struct LoopSettings {
  std::filesystem::path file;
  std::string target;             // a MODEL argument
  std::vector<std::string> logs;  // files, directories or globs, relative to the directory of LOOP.toml
  std::filesystem::path work, store;
  std::string channel = "production", draft = "prune:1";
  std::string regenerate = "auto";  // auto | always | never
  double cooldown_s = 86400;        // seconds to wait after a verdict that stopped a run
  int64_t keep = 3;                 // number of runs that are kept
  // The words of a launcher command such as torchrun, which starts several processes of the command after it. The loop
  // starts the distill stage through the launcher. Empty = no launcher.
  std::vector<std::string> launcher;
  std::map<std::string, std::vector<std::string>> stage_flags;  // "data" → {"--holdout", "0.1", …}
};

// A stage of a run. Its table in LOOP.toml may set any flag of its command except those in `not_its_own`: flags that
// the loop itself passes, and flags that change what the command does.
struct LoopStage {
  std::string name, command;  // "data", "data ingest"
  std::vector<std::string> not_its_own;
};
// The stages in the order of a run.
const std::vector<LoopStage>& loop_stages();

// Throws Error(kConfig) for unknown or missing keys and names that a stage would refuse, Error(kData) for logs that do
// not exist. The keys of the stages' tables are checked against `commands`, if they are given.
LoopSettings read_loop_settings(const std::filesystem::path& file, const Command* commands = nullptr);

struct LoopOrder {
  bool plan = false;   // print what would run, write nothing
  bool force = false;  // run even if an earlier verdict forbids it
};

// Runs the stages that are not done yet. Returns 0 if the package is promoted, else the failing stage's exit code. If
// no run may start, returns Refusal::exit_code (cli/loop/runs.h).
int run_loop(const Global& global, const LoopSettings& settings, const LoopOrder& order = {});

}  // namespace specdec::cli
