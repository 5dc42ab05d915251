// Installs the sink of base/log.h, which writes text or JSON lines to stderr.
#pragma once

#include "cli/command.h"

namespace specdec::cli {

void install_log(const Global& global);

}  // namespace specdec::cli
