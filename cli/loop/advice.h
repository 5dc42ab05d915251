// Writes the advice that people read when a loop stops: what a stage found, how far that is from the requirement, and
// the one setting to change.
#pragma once

#include <string>

#include "base/json.h"
#include "cli/loop/loop.h"

namespace specdec::cli {

struct Advice {
  std::string reason;  // verdict and figures, or the stage's own error
  std::string change;  // a setting of LOOP.toml, or a command
};

// `result` is the stage's JSON, null if it gave none; `trained` is that of the distill stage; `error` is the last line
// that the stage wrote to stderr.
Advice advise(const LoopSettings& settings, const std::string& stage, int exit_code, const Json& result,
              const Json& trained, const std::string& error);

// Returns a stage's result as one line; "" if there is nothing to report.
std::string headline(const std::string& stage, const Json& result);

}  // namespace specdec::cli
