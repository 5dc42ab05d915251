// `specdec monitor status` prints the present state, and `specdec monitor report` shows the draft's whole life.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace specdec::cli {

void add_monitor_past(CLI::App& monitor, Cli& cli);

}  // namespace specdec::cli
