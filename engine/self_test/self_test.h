// The self-test of the CUDA kernels: each kernel of the library runs on small problems on the user's own GPU, and its
// results are compared with those of a plain C++ implementation. Tests without a GPU pass a library that runs the
// kernels on the CPU, with fibers as threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/schema/gpu_check.h"
#include "engine/self_test/test_device.h"

namespace specdec::self_test {

// The number of problems. kFew is for tests without a GPU, which are slow. On a GPU, kUsual takes a few seconds and
// kMany a minute. Each includes the problems of the previous one.
enum class Extent { kFew, kUsual, kMany };

struct KernelCase {
  std::string kernel;  // the kernel's name in CudaLibrary
  std::string shape;   // description of the problem, for people
  // Returns a description of what is wrong with the results, or an empty text if they are right. Throws Error(kDevice)
  // if the kernel cannot be run, and DeviceLost if the device can no longer be used.
  std::function<std::string(const TestDevice&)> run;
};
std::vector<KernelCase> kernel_cases(Extent extent);

struct SelfTestResult {
  int64_t cases = 0;
  std::vector<GpuFault> faults;
};
// Runs the cases one after the other. Throws DeviceLost, with the name of the kernel, if the device can no longer be
// used.
SelfTestResult test_kernels(const TestDevice& device, const std::vector<KernelCase>& cases);

}  // namespace specdec::self_test
