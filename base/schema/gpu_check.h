// The check of a machine's GPUs, which the engine prints and `specdec doctor` reads: each device that CUDA shows, and
// the self-test of the CUDA kernels on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fields.h"

namespace specdec {

struct GpuFault {
  std::string kernel, shape, what;
  std::string text() const { return kernel + ", " + shape + ": " + what; }
};
void visit_fields(Fields& f, GpuFault& fault);

struct GpuCheck {
  int index = 0;  // as in --device cuda:<index>
  std::string name, compute_capability;
  int64_t free_bytes = 0, total_bytes = 0;
  double copy_bytes_per_second = 0;  // of a copy within the device; counts bytes read and bytes written
  int64_t cases = 0;                 // number of problems that the kernels were tested with
  double seconds = 0;                // duration of the self-test
  std::vector<GpuFault> faults;
};
void visit_fields(Fields& f, GpuCheck& gpu);

struct GpuChecks {
  std::vector<GpuCheck> gpus;
  std::string none;  // the reason why there are no GPUs; empty if there are some
};
void visit_fields(Fields& f, GpuChecks& checks);

}  // namespace specdec
