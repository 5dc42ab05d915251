// A clock for tests. The test sets `now` (seconds), or each call of seconds() first adds `step` to it. At now = 0 the
// wall clock (unix_seconds()) gives 1700000000 s.
#pragma once

#include "base/clock.h"

namespace specdec::testing {

struct ManualClock final : Clock {
  explicit ManualClock(double at = 0, double step_by = 0) : now(at), step(step_by) {}
  double seconds() const override {
    if (step != 0) now += step;  // with step = 0 nothing is written, so threads may share the clock
    return now;
  }
  int64_t unix_seconds() const override { return unix_zero + static_cast<int64_t>(now); }
  mutable double now;
  double step;
  int64_t unix_zero = 1700000000;
};

}  // namespace specdec::testing
