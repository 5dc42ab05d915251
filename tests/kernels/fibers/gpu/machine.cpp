// Lets the tests of tests/gpu run on fibers, which tests these tests.
#include "tests/gpu/machine.h"

#include "tests/kernels/fibers/model/fiber_library.h"

namespace specdec::gpu {

const Machine& machine() {
  static const Machine made = {at::kCPU, &fibers::fiber_library(), false};
  return made;
}

Json& figures() {
  static Json made = Json::object();
  return made;
}

}  // namespace specdec::gpu
