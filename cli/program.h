// Parses argv and runs one command. Errors become one line on stderr and the contract's exit code only here.
#pragma once

#include "cli/command.h"

namespace specdec::cli {

int run_program(int argc, char** argv, const EngineRunners& runners);

}  // namespace specdec::cli
