// gpu_test: the tests that need a GPU. Without one it prints why and exits with 77, which CTest shows as skipped.
#include <gtest/gtest.h>

#include <cstdio>

#include "base/version.h"
#include "engine/kernels/visible_devices.h"
#include "tests/gpu/machine.h"
#include "tests/gpu/report.h"

namespace specdec::gpu {

const Machine& machine() {
  static const Machine made = {at::Device(at::kCUDA, 0), &kernels::cuda_library(), true};
  return made;
}

namespace {

constexpr int kSkipped = 77;

Json description() {
  kernels::CudaDevice device = {};
  int64_t free_bytes = 0, total_bytes = 0;
  if (machine().library->describe(0, &device) != 0 || machine().library->memory(0, &free_bytes, &total_bytes) != 0)
    return nullptr;
  return {{"name", std::string(device.name)},
          {"compute_capability", std::to_string(device.major) + "." + std::to_string(device.minor)},
          {"free_bytes", free_bytes},
          {"total_bytes", total_bytes},
          {"cuda_driver", device.driver},
          {"cuda_runtime", device.runtime},
          {"visible_devices", kernels::visible_devices_text()},
          {"specdec", kToolVersion}};
}

int run_tests() {
  std::string reason;
  if (kernels::cuda_device_count(&reason) == 0) {
    std::printf("gpu_test: SKIPPED: %s\n", reason.c_str());
    return kSkipped;
  }
  start_report(description());
  return RUN_ALL_TESTS();
}

}  // namespace

}  // namespace specdec::gpu

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  return specdec::gpu::run_tests();
}
