// The processes of `serve --tensor-parallel` other than the server: `specdec-engine tensor-rank LOG_FORMAT SOCKET`.
// Only the server starts them, so tensor-rank is not among the commands of the command line.
#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace specdec::cli {

// Returns the program and its first arguments, to which the caller appends the number of the socket.
std::vector<std::string> tensor_rank_command(const Global& global);
bool is_tensor_rank(int argc, char** argv);
// Executes the server's requests until the server ends. Returns the exit code.
int run_tensor_rank(char** argv);

}  // namespace specdec::cli
