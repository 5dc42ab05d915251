// The loop asks its questions and does its actions with this: the options of this check, what it knows of package and
// target, and the loop's memory as it is at that moment.
#pragma once

#include <cstdint>

#include "monitor/facts.h"
#include "monitor/machine.h"
#include "monitor/options.h"

namespace specdec::monitor {

struct LoopContext {
  const CheckOptions& options;
  const Facts& facts;
  const Memory& memory;
  int64_t now = 0;  // is in unix seconds
};

}  // namespace specdec::monitor
