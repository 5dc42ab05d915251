// Runs the tests of tests/gpu on fibers, so that they are themselves tested on machines without a GPU.
#include "tests/gpu/machine.h"

#include <gtest/gtest.h>

#include "tests/gpu/report.h"
#include "tests/kernels/fibers/model/fiber_library.h"

namespace specdec::gpu {

const Machine& machine() {
  static const Machine made = {at::kCPU, &fibers::fiber_library(), false};
  return made;
}

}  // namespace specdec::gpu

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  specdec::gpu::start_report({{"name", "fibers"}});
  return RUN_ALL_TESTS();
}
