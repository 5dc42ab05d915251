// Writes the completion script of each shell from the tree of commands.
#pragma once

#include <string>

#include "cli/command_tree.h"

namespace specdec::cli {

std::string bash_script(const Command& root);
std::string zsh_script(const Command& root);
std::string fish_script(const Command& root);

// Returns the text as one word in single quotes, as bash and zsh read it.
std::string single_quoted(const std::string& text);
// Joins the words with spaces.
std::string joined(const std::vector<std::string>& words);
// Returns the positional arguments of a command, in their order.
std::vector<const Argument*> positionals(const Command& command);
// Returns the names of the direct subcommands, without the names of their parents.
std::vector<std::string> names_below(const Command& command);
// Returns the flags to offer for a command: its own, and the flags of the program that the command does not redefine.
std::vector<const Argument*> offered_flags(const Command& root, const Command& command);

}  // namespace specdec::cli
