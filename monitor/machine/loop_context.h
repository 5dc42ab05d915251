// The arguments of the loop's questions (questions.h) and actions in one check: the user's options, the facts about
// package and target, and the loop's memory.
#pragma once

#include <cstdint>

#include "monitor/facts/facts.h"
#include "monitor/facts/options.h"
#include "monitor/machine/machine.h"

namespace specdec::monitor {

struct LoopContext {
  const CheckOptions& options;
  const Facts& facts;
  const Memory& memory;
  int64_t now = 0;  // unix seconds
};

}  // namespace specdec::monitor
