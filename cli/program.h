// Parses argv and runs one command. Only here do errors become one line on stderr and an exit code.
#pragma once

#include "cli/command.h"

namespace specdec::cli {

int run_program(int argc, char** argv, const EngineRunners& runners);

}  // namespace specdec::cli
