// Settings with less priority than the flags: SPECDEC_* variables, then the TOML file of --config.
#pragma once

namespace CLI {
class App;
}

namespace specdec::cli {

// Gives every long option of the chosen subcommand its default from SPECDEC_<NAME> (or SPECDEC_<COMMAND>_<NAME>) or
// from the file: [command] tables, and top-level keys for options that several commands share. Call it before
// app.parse. Throws Error(kConfig) for a file that is missing or malformed and for an unknown table or key (with the
// nearest known name).
void apply_settings(CLI::App& app, int argc, char** argv);

}  // namespace specdec::cli
