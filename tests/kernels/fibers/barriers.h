// Checks that a kernel needs each of its barriers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/kernels/fibers/fibers.h"

namespace specdec::fibers {

// Expects that `run` reaches `count` barriers. Then leaves out each of them in turn, under five orders of the threads,
// and expects that the returned bytes change in at least one.
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
