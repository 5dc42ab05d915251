// `specdec demo`: runs the life cycle of a draft on the embedded model, step by step, with measured figures and checks.
#pragma once

#include <cstdint>
#include <filesystem>

#include "cli/command.h"

namespace specdec::cli {

struct DemoOptions {
  // The output directory. It must not exist, or must be the directory of an earlier demo, which is then replaced.
  std::filesystem::path out = "specdec-demo";
  int64_t conversations = 3000;
  double distill_seconds = 60;
  uint64_t seed = 1;
};

// Returns 0 if every check holds, else 3. Throws Error for anything unexpected.
int run_demo(const Global& global, const DemoOptions& options);

}  // namespace specdec::cli
