// A clock for tests. A test sets `now` (seconds), or `step`: every call of seconds() first adds `step` to `now`. At now
// = 0 the wall clock (unix_seconds()) returns 1700000000 s.
#pragma once

#include "base/clock.h"

namespace specdec::testing {

struct ManualClock final : Clock {
  explicit ManualClock(double at = 0, double step_by = 0) : now(at), step(step_by) {}
  double seconds() const override {
    if (step != 0) now += step;  // no write if step = 0, so that threads may share the clock
    return now;
  }
  int64_t unix_seconds() const override { return unix_zero + static_cast<int64_t>(now); }
  mutable double now;
  double step;
  int64_t unix_zero = 1700000000;
};

}  // namespace specdec::testing
