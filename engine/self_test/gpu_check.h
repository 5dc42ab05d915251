// What `specdec doctor` tells of the GPUs of a machine: the devices that CUDA shows to this process, the self-test of
// the kernels on each of them, and the bandwidth of its memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "engine/self_test/self_test.h"

namespace specdec::self_test {

struct GpuCheck {
  int32_t index = 0;  // as in --device cuda:<index>
  kernels::CudaDevice device = {};
  int64_t free_bytes = 0, total_bytes = 0;
  double copy_bytes_per_second = 0;  // of a copy on the device, bytes read and bytes written counted
  SelfTestResult tested;
  double seconds = 0;  // of the self-test
};
// Throws Error(kDevice) if the device cannot be asked or has no memory left for the check, and DeviceLost.
GpuCheck check_gpu(const TestDevice& device, Extent extent, const Clock& clock);

// Returns the bytes per second that copies on the device read and write, the best of several rounds, from one half of
// 2 GiB to the other, or of less if so much is not free.
double copy_bandwidth(const TestDevice& device, int64_t free_bytes, const Clock& clock);

// Memory that LibTorch allocates: of a GPU, or the host's (-1), for tests.
std::unique_ptr<TestMemory> make_test_memory(int32_t device);

struct GpuChecks {
  std::vector<GpuCheck> gpus;
  std::string none;  // why there are none, if there are none
};
// Checks all devices that CUDA shows.
GpuChecks check_gpus(const Clock& clock);

// {gpus: [{index, name, compute_capability, free_bytes, total_bytes, copy_bytes_per_second, cases, seconds, faults:
// [{kernel, shape, what}]}], none}
Json to_json(const GpuChecks& checks);

}  // namespace specdec::self_test
