// Checks that a kernel needs its barriers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {

// Expects that `run` reaches this many barriers, and that its bytes change when one of them is left out, whichever it
// is, in one of five orders of the threads.
inline void expect_barriers_are_needed(size_t count, const std::function<std::vector<uint8_t>()>& run) {
  settings() = {.barriers = {}};
  const std::vector<uint8_t> right = run();
  const std::vector<Site> barriers = settings().barriers;
  EXPECT_EQ(barriers.size(), count);
  for (const Site& barrier : barriers) {
    bool noticed = false;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      settings().seed = seed;
      settings().without = barrier;
      noticed |= run() != right;
    }
    EXPECT_TRUE(noticed) << "nothing changes without the barrier of line " << barrier.line;
  }
  settings() = {};
}

}  // namespace specdec::fibers
