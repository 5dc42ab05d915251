// Reads settings that rank below the flags: SPECDEC_* variables, then the TOML file of --config.
#pragma once

namespace CLI {
class App;
}

namespace specdec::cli {

// Gives every long option of the chosen subcommand its default: from SPECDEC_<COMMAND>_<NAME>, SPECDEC_<NAME> or the
// TOML file. In the file, a [command] table holds the options of one command, and top-level keys hold options that
// several commands share. Call it before app.parse(). Throws Error(kConfig) for a missing or malformed file, and for an
// unknown table or key (with the nearest known name).
void apply_settings(CLI::App& app, int argc, char** argv);

}  // namespace specdec::cli
