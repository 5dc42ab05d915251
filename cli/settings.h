// Reads settings that rank below the flags: SPECDEC_* variables, then the TOML file of --config.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace specdec::cli {

// Maps each option whose value does not come from the command line to the origin of its value: "--port" →
// "SPECDEC_SERVE_PORT", or "specdec.toml: [serve] port".
using SettingOrigins = std::map<std::string, std::string>;

// Gives every long option of the chosen subcommand its default: from SPECDEC_<COMMAND>_<NAME>, SPECDEC_<NAME> or the
// TOML file. In the file, a [command] table holds the options of one command, and top-level keys hold options that
// several commands share. Call it before app.parse(). Throws Error(kConfig) for a missing or malformed file, and for an
// unknown table or key (with the nearest known name).
SettingOrigins apply_settings(CLI::App& app, int argc, char** argv);

// Takes an error message that begins with a flag. If the flag's value comes from a variable or a file and not from the
// arguments, returns the message with the flag replaced by that origin; else returns the message unchanged.
std::string named_by_origin(const std::string& message, const SettingOrigins& origins,
                            const std::vector<std::string>& arguments);

// Returns a warning for each variable of `environment` ("NAME=value") that has the prefix of the command's variables
// but is not one of them: "SPECDEC_SERVE_PROT sets nothing (did you mean SPECDEC_SERVE_PORT?)".
std::vector<std::string> unknown_variables(const CLI::App& app, const std::string& command,
                                           const std::vector<std::string>& environment);

}  // namespace specdec::cli
