// Writes the advice that people read when a loop stops: the stage's result, its distance from the requirement, and the
// one setting to change.
#pragma once

#include <string>

#include "base/json.h"
#include "cli/loop/loop.h"
#include "cli/loop/runs.h"

namespace specdec::cli {

struct Advice {
  std::string reason;  // verdict and figures, or the stage's own error
  std::string change;  // a setting of LOOP.toml, or a command
};

// `trained` is the JSON of the distill stage, null if it did not finish.
Advice advise(const LoopSettings& settings, const StageEnd& end, const Json& trained);

// Returns a stage's result as one line; "" if there is nothing to report.
std::string headline(const std::string& stage, const Json& result);

}  // namespace specdec::cli
