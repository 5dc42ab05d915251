// Parses argv and runs one command. This is the only place that turns errors into a line on stderr and an exit code.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace specdec::cli {

int run_program(int argc, char** argv, const EngineRunners& runners);

// Parses the arguments of `specdec`, with the environment and the settings file as defaults, and checks the options as
// their command would. Runs nothing. Throws Error(kUsage or kConfig).
void check_command_line(const std::vector<std::string>& arguments);

}  // namespace specdec::cli
