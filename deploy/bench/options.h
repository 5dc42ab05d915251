// Options of `specdec bench`.
#pragma once

#include <string>
#include <vector>

#include "base/run_options.h"

namespace specdec::deploy {

struct BenchOptions {
  std::string target, data, out;
  std::vector<std::string> drafts;
  std::string split = "holdout";
  std::vector<int> ks = {2, 4, 6, -1};  // -1: the controller chooses K
  std::vector<int> batches = {1, 2, 4};
  int64_t prompts = 8, tokens = 64;
  bool allow_stale = false;
  DeviceOptions device;
  SamplingOptions sampling;
  SpeculationOptions speculation;
};

}  // namespace specdec::deploy
