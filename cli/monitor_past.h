// `specdec monitor status` and `specdec monitor report`: what is now, and the whole life of the draft.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace specdec::cli {

void add_monitor_past(CLI::App& monitor, Cli& cli);

}  // namespace specdec::cli
