// Gives the values of flags the names that --help shows, such as DIR or holdout|train|all. Completion and the Python
// package learn from the name what a value may be.
#pragma once

#include <string>

#include "cli/command_tree.h"

namespace specdec::cli {

// Ends the name of a value that is a comma list, although its flag parses the list itself.
inline constexpr char kListMark[] = ",...";
// Names a positional argument that is a command of the program.
inline constexpr char kCommandName[] = "COMMAND";

// Names the values of all flags and positional arguments of text, by the table in value_names.cpp. Does not change what
// is parsed.
void name_values(CLI::App& app);
// True if the table has the argument. `words` is its command, such as "data ingest", and `name` its first long name.
bool has_value_name(const std::string& words, const std::string& name);
// True for a word that is typed as it is, in contrast to a placeholder such as FILE or cuda:I.
bool is_literal(const std::string& alternative);
// Returns the files that a placeholder stands for.
Offer offer_of(const std::string& placeholder);

}  // namespace specdec::cli
