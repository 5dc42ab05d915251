// Measures what `distill` needs to predict the speed of a trained draft (base/draft_speed.h), with the gate's own code:
// roll-outs for the acceptance by position, and whole steps for the costs.
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
  std::vector<std::string> ids;  // held-out requests, of which answers are generated (rolled out)
  double temperature = 1;
  DeviceOptions device;
  int max_k = 8;
  int64_t prompts = 64, tokens = 64;  // number of roll-outs, and tokens of each
};
// Measures a draft. Throws what loading and running models throws, and Error(kNetwork), the kind that means "try
// again", if a signal stops it.
DraftSpeed measure_draft(const DraftCostOptions& options, const Clock& clock, const ProgressFn& progress = {});

}  // namespace specdec::deploy
