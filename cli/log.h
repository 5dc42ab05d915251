// Installs the sink of base/log.h: text or JSON lines on stderr.
#pragma once

#include "cli/command.h"

namespace specdec::cli {

void install_log(const Global& global);

}  // namespace specdec::cli
