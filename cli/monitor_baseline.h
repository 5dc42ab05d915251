#pragma once

#include <CLI/CLI.hpp>

#include "cli/command.h"

namespace specdec::cli {

void add_monitor_baseline(CLI::App& monitor, Cli& cli);

}  // namespace specdec::cli
