// Writes the completion script of each shell from the tree of commands.
#pragma once

#include <string>

#include "cli/command_tree.h"

namespace specdec::cli {

std::string bash_script(const Command& root);
std::string zsh_script(const Command& root);
std::string fish_script(const Command& root);

// Returns the text as one word in single quotes, in the way of bash and zsh.
std::string single_quoted(const std::string& text);
// Joins the words with spaces.
std::string joined(const std::vector<std::string>& words);
// Returns the positional arguments of a command, in their order.
std::vector<const Argument*> positionals(const Command& command);
// Returns the names of the commands directly below, without the names of their parents.
std::vector<std::string> names_below(const Command& command);
// Returns the flags that a command offers: its own, and those of the program that it does not have itself.
std::vector<const Argument*> offered_flags(const Command& root, const Command& command);

}  // namespace specdec::cli
