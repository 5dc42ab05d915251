#include "engine/self_test/gpu_check.h"

#include <algorithm>

#include "engine/kernels/cuda_errors.h"

namespace specdec::self_test {

namespace {

void check(const TestDevice& device, int32_t code, const std::string& what) {
  if (code != 0)
    kernels::throw_cuda_error(code, "cuda:" + std::to_string(device.index) + ": " + what,
                              device.library.error_text(code));
}

}  // namespace

double copy_bandwidth(const TestDevice& device, int64_t free_bytes, const Clock& clock) {
  constexpr int64_t kMost = int64_t{1} << 30;
  constexpr int kRounds = 8, kCopies = 4;  // several copies per round, because a launch takes time too
  const auto bytes = static_cast<size_t>(std::min(kMost, free_bytes / 4));
  void *const from = device.memory.allocate(bytes), *const to = device.memory.allocate(bytes);
  double best = 0;
  for (int round = 0; round <= kRounds; ++round) {
    const double start = clock.seconds();
    for (int copy = 0; copy < kCopies; ++copy) device.memory.copy(to, from, bytes);
    check(device, device.library.synchronize(device.index), "copying on the device");
    const double seconds = clock.seconds() - start;
    if (round > 0 && seconds > 0)  // the first round only touches the memory
      best = std::max(best, 2.0 * kCopies * static_cast<double>(bytes) / seconds);
  }
  device.memory.clear();
  return best;
}

GpuCheck check_gpu(const TestDevice& device, Extent extent, const Clock& clock) {
  GpuCheck out;
  out.index = device.index;
  kernels::CudaDevice described = {};
  check(device, device.library.describe(device.index, &described), "asking for its name");
  out.name = described.name;
  out.compute_capability = std::to_string(described.major) + "." + std::to_string(described.minor);
  check(device, device.library.memory(device.index, &out.free_bytes, &out.total_bytes), "asking for its memory");
  out.copy_bytes_per_second = copy_bandwidth(device, out.free_bytes, clock);
  const std::vector<KernelCase> cases = kernel_cases(extent);
  const double start = clock.seconds();
  SelfTestResult tested = test_kernels(device, cases);
  out.seconds = clock.seconds() - start;
  out.cases = tested.cases;
  out.faults = std::move(tested.faults);
  return out;
}

GpuChecks check_gpus(const Clock& clock) {
  GpuChecks out;
  const int count = kernels::cuda_device_count(&out.none);
  if (count > 0) out.none.clear();
  for (int32_t index = 0; index < count; ++index) {
    const std::unique_ptr<TestMemory> memory = make_test_memory(index);
    out.gpus.push_back(check_gpu({kernels::cuda_library(), index, *memory}, Extent::kUsual, clock));
  }
  return out;
}

}  // namespace specdec::self_test
