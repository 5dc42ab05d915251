// The processes of `serve --tensor-parallel` other than the server: `specdec-engine tensor-rank LOG_FORMAT SOCKET`,
// which only the server starts. So it is not among the commands of the command line.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace specdec::cli {

// Returns the program and its first arguments; the number of a socket follows.
std::vector<std::string> tensor_rank_command(const Global& global);
bool is_tensor_rank(int argc, char** argv);
// Does what the server asks until the server ends. Returns the exit code.
int run_tensor_rank(char** argv);

}  // namespace specdec::cli
