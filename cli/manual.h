// Writes manual pages from the tree of commands.
#pragma once

#include <string>

#include "cli/command_tree.h"

namespace specdec::cli {

// Returns the name of a command's page without its section: "specdec-data-ingest".
std::string page_name(const Command& command);
// Returns the manual page, written with troff's man macros.
std::string manual_page(const Command& root, const Command& command);

}  // namespace specdec::cli
