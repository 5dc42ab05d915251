// Options of `specdec validate`.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/run_options.h"

namespace specdec::deploy {

struct ValidateOptions {
  std::string target, draft, data, out;
  std::string split = "holdout";  // holdout | train | all
  // "target": the target first rewrites the answers that it did not write; "data": no answer is rewritten.
  std::string contexts = "target";
  std::string parts = "acceptance,rollout,speed,lossless";
  std::string baseline;  // path of an earlier validation report; "" = none
  std::string against;   // MODEL: the serving draft, with which the draft is compared
  double floor = 0.60, goal = 0.70;
  std::vector<std::string> segment_floors;  // "NAME=FLOOR" each
  std::optional<double> segments_floor;     // floor of every segment with at least kSegmentRequests requests
  std::optional<double> min_gain;  // default -0.02 with --against; with --baseline no gain is required by default
  bool force = false, allow_stale = false, exit_zero = false, early_stop = true;
  std::vector<std::string> predict;  // "c=C,v=V[,batch=B]" each
  int64_t max_requests = 1000;       // requests taken from the split; 0 = all
  int64_t rollout_requests = 256;    // requests used for roll-outs, of max_requests; 0 = all
  int64_t rollout_tokens = 64;       // emitted tokens per roll-out
  int64_t speed_prompts = 8, speed_tokens = 64;
  DeviceOptions device;
  SamplingOptions sampling;
  SpeculationOptions speculation;
};

struct ValidateParts {
  bool acceptance = false, rollout = false, speed = false, lossless = false;
};
ValidateParts parse_parts(const std::string& text);  // for example "acceptance,speed"; throws Error(kUsage)

// Parses "NAME=FLOOR". Throws Error(kUsage) as check_floor() does (deploy/validate/gate.h).
std::pair<std::string, double> parse_segment_floor(const std::string& text, bool force);

// Throws Error(kUsage) for the first invalid option; the message has the flag, the value found and the values allowed.
// Reads no file.
void validate(const ValidateOptions& options);

}  // namespace specdec::deploy
