// Time in tests: moved by the test, or by `step` with every look; 1700000000 s of wall clock at 0.
#pragma once

#include "base/clock.h"

namespace specdec::testing {

struct ManualClock final : Clock {
  explicit ManualClock(double at = 0, double step_by = 0) : now(at), step(step_by) {}
  double seconds() const override {
    if (step != 0) now += step;  // else read only: threads may share it
    return now;
  }
  int64_t unix_seconds() const override { return unix_zero + static_cast<int64_t>(now); }
  mutable double now;
  double step;
  int64_t unix_zero = 1700000000;
};

}  // namespace specdec::testing
