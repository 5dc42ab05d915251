// The information of `specdec doctor` about the GPUs of a machine: the devices that CUDA shows to this process, the
// self-test of the kernels on each of them, and their memory bandwidth.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/self_test/self_test.h"

namespace specdec::self_test {

// Throws Error(kDevice) if the device cannot be queried or has too little memory left for the check, and DeviceLost.
GpuCheck check_gpu(const TestDevice& device, Extent extent, const Clock& clock);

// Returns the memory bandwidth in bytes per second, read plus written, as the best of several rounds of copies from one
// half of a 2 GiB buffer to the other. The buffer is smaller if less memory is free.
double copy_bandwidth(const TestDevice& device, int64_t free_bytes, const Clock& clock);

// Makes memory that LibTorch allocates on a GPU or, for tests, on the host (device -1).
std::unique_ptr<TestMemory> make_test_memory(int32_t device);

// Checks all devices that CUDA shows to this process.
GpuChecks check_gpus(const Clock& clock);

}  // namespace specdec::self_test
