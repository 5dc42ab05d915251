// Looks commands up in the tree. These functions are not in command_tree.cpp, so that a fuzz target (tests/fuzz, toml)
// can link them without the code that declares all flags.
#include "cli/command_tree.h"

namespace specdec::cli {

const Command* find_command(const Command& root, const std::string& words) {
  for (const Command* command : with_subcommands(root))
    if (command->words == words) return command;
  return nullptr;
}

std::vector<const Command*> with_subcommands(const Command& root) {
  std::vector<const Command*> all = {&root};
  for (const Command& sub : root.commands)
    for (const Command* command : with_subcommands(sub)) all.push_back(command);
  return all;
}

}  // namespace specdec::cli
