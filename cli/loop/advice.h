// What people read when a loop stops: what a stage found, how far it is from what was wanted, and the one thing to
// change.
#pragma once

#include <string>

#include "base/json.h"
#include "cli/loop/loop.h"

namespace specdec::cli {

struct Advice {
  std::string reason;  // verdict and figures, or the stage's own error
  std::string change;  // a setting of LOOP.toml, or a command
};

// `result`: the stage's JSON, null where it gave none; `trained`: that of the distill stage; `error`: the last line the
// stage wrote to stderr.
Advice advise(const LoopSettings& settings, const std::string& stage, int exit_code, const Json& result,
              const Json& trained, const std::string& error);

// A stage's result in one line; "" where it has nothing to say.
std::string headline(const std::string& stage, const Json& result);

}  // namespace specdec::cli
