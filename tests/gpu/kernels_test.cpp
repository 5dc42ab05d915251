// Runs the self-test of the kernels at more shapes than `specdec doctor` does.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/gpu/machine.h"
#include "tests/gpu/report.h"

namespace specdec::gpu {
namespace {

using self_test::Extent;

// SPECDEC_GPU_FEW limits the shapes to a few, for tools that slow down every kernel.
Extent extent() { return !machine().real || std::getenv("SPECDEC_GPU_FEW") ? Extent::kFew : Extent::kMany; }

TEST(Kernels, EqualTheirTwins) {
  const auto memory = machine().memory();
  const GpuCheck check = check_gpu(machine().test_device(*memory), extent(), SystemClock());
  for (const GpuFault& fault : check.faults) ADD_FAILURE() << fault.text();
  EXPECT_GT(check.cases, 30);
  record("self_test", extent() == Extent::kFew ? "few shapes" : "many shapes", json_of(check));
}

}  // namespace
}  // namespace specdec::gpu
