// A CPU meter for tests, so that no test depends on how busy the real machine is.
#pragma once

#include "deploy/validate/cpu_meter.h"

namespace specdec::testing {

// Reports two CPUs, both unused by other processes.
class IdleMeter final : public deploy::CpuMeter {
 public:
  int cpus() const override { return 2; }
  std::optional<deploy::CpuTime> read() const override { return deploy::CpuTime{1, 1, 0}; }
};

}  // namespace specdec::testing
