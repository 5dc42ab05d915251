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

// Runs the check of one GPU. Throws Error(kDevice) if the device cannot be queried or has too little memory left for
// the check, and DeviceLost if CUDA can no longer be used.
GpuCheck check_gpu(const TestDevice& device, Extent extent, const Clock& clock);

// Returns the memory bandwidth in bytes per second, read plus written. Copies one half of a 2 GiB buffer to the other
// half in several rounds, and takes the fastest round. The buffer is smaller if less memory is free.
double copy_bandwidth(const TestDevice& device, int64_t free_bytes, const Clock& clock);

// Returns an object that allocates memory with LibTorch on GPU `device` or, for tests, on the host (device -1).
std::unique_ptr<TestMemory> make_test_memory(int32_t device);

// Checks all devices that CUDA shows to this process.
GpuChecks check_gpus(const Clock& clock);

}  // namespace specdec::self_test
