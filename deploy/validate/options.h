// Options of `specdec validate`.
#pragma once

#include <string>
#include <vector>

#include "base/run_options.h"

namespace specdec::deploy {

struct ValidateOptions {
  std::string target, draft, data, out;
  std::string split = "holdout";          // holdout | train | all
  std::string contexts = "target";        // target | data
  std::string parts = "acceptance,rollout,speed,lossless";
  std::string baseline;                   // a validation report
  double floor = 0.60, goal = 0.70;
  bool force = false, allow_stale = false, exit_zero = false;
  int64_t max_requests = 256;             // of the split; 0 = all
  int64_t rollout_tokens = 64;            // emitted tokens a roll-out
  int64_t speed_prompts = 8, speed_tokens = 64;
  DeviceOptions device;
  SamplingOptions sampling;
  SpeculationOptions speculation;
};

}  // namespace specdec::deploy
