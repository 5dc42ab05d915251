// Measures what `distill` needs to predict the speed of a draft that it has trained (base/draft_speed.h), by the means
// of the gate: roll-outs for acceptance by position, and whole steps for the costs.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/draft_speed.h"
#include "base/progress.h"
#include "base/run_options.h"

namespace specdec::deploy {

struct DraftCostOptions {
  std::string target, draft, data;
  std::vector<std::string> ids;  // held-out requests whose prompts are rolled out; others are not
  double temperature = 1;
  DeviceOptions device;
  int max_k = 8;
  int64_t prompts = 64, tokens = 64;  // of the roll-outs
};
// Throws what loading and running models throws, and Error(kNetwork) if a signal stops it.
DraftSpeed measure_draft(const DraftCostOptions& options, const Clock& clock, const ProgressFn& progress = {});

}  // namespace specdec::deploy
