// `specdec monitor status` prints the present state; `specdec monitor report` renders the draft's whole history as a
// page.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace specdec::cli {

void add_monitor_past(CLI::App& monitor, Cli& cli);

}  // namespace specdec::cli
