// Parses argv and runs one command. Only here do errors become one line on stderr and an exit code.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace specdec::cli {

int run_program(int argc, char** argv, const EngineRunners& runners);

// Parses the arguments of `specdec` with the settings that rank below them, and checks them as their command does
// before it begins. Runs nothing. Throws Error(kUsage or kConfig).
void check_command_line(const std::vector<std::string>& arguments);

}  // namespace specdec::cli
