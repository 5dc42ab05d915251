// Meters that tests bring, so that none of them reads the machine.
#pragma once

#include "deploy/validate/cpu_meter.h"

namespace specdec::testing {

// Two CPUs, of which nobody else uses anything.
class IdleMeter final : public deploy::CpuMeter {
 public:
  int cpus() const override { return 2; }
  std::optional<deploy::CpuTime> read() const override { return deploy::CpuTime{1, 1, 0}; }
};

}  // namespace specdec::testing
