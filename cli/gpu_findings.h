// The lines that `specdec doctor` prints about the GPUs.
#pragma once

#include <string>
#include <vector>

#include "base/schema/gpu_check.h"

namespace specdec::cli {

// One line of `specdec doctor`.
struct Finding {
  std::string name;
  bool good = true;
  std::string text;
};
void visit_fields(Fields& f, Finding& finding);

// Returns the lines of `doctor` about GPUs, from the engine's checks. They say what each GPU is and whether the kernels
// compute correctly on it, with one line for each kernel that does not.
std::vector<Finding> gpu_findings(const GpuChecks& checks);

// Returns the lines about an engine that was asked to check its GPUs, printed `output` and ended with `exit_code`:
// whether it starts, and the findings. Sets `gpus` to the GPUs that it found.
std::vector<Finding> engine_findings(const std::string& engine, int exit_code, const std::string& output,
                                     std::vector<GpuCheck>& gpus);

// Returns the line for an engine that was killed because it had not ended after `seconds`.
Finding late_finding(const std::string& engine, double seconds);

}  // namespace specdec::cli
