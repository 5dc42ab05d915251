#include "base/schema/gpu_check.h"

namespace specdec {

namespace {

constexpr JsonNumbers kAnyAmount{0, 1e18, {}};
constexpr ListRule kDevices{1024, true}, kFaults{65536, true};

}  // namespace

void visit_fields(Fields& f, GpuFault& fault) {
  f.type("GpuFault", "A CUDA kernel whose results are not those of plain C++.");
  f("kernel", fault.kernel);
  f("shape", fault.shape);
  f("what", fault.what);
}

void visit_fields(Fields& f, GpuCheck& gpu) {
  f.type("GpuCheck",
         "A GPU that CUDA shows, and the self-test of the kernels on it. The bandwidth of copies counts the bytes read "
         "and those written.");
  f("index", gpu.index, kAnyCount);
  f("name", gpu.name);
  f("compute_capability", gpu.compute_capability);
  f("free_bytes", gpu.free_bytes, kAnyCount);
  f("total_bytes", gpu.total_bytes, kAnyCount);
  f("copy_bytes_per_second", gpu.copy_bytes_per_second, kAnyAmount);
  f("cases", gpu.cases, kAnyCount);
  f("seconds", gpu.seconds, kAnyAmount);
  f("faults", gpu.faults, kFaults);
}

void visit_fields(Fields& f, GpuChecks& checks) {
  f("gpus", checks.gpus, kDevices);
  f("none", checks.none);
}

}  // namespace specdec
