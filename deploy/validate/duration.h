// Estimates how long a validation takes, so that users know how long to wait.
#pragma once

#include <cstdint>
#include <string>

#include "deploy/validate/options.h"

namespace specdec::deploy {

// The times of two roll-outs of one batch. The first generates one token, so nearly all of its time is prefill. The
// second generates kTimedTokens tokens more than the first.
struct RolloutCost {
  static constexpr int64_t kTimedTokens = 8;
  int64_t requests = 1;
  double one_token = 0, more_tokens = 0;  // seconds of the first and of the second roll-out
  // Returns the seconds that the whole batch takes for each token after the first, measured over kTimedTokens tokens.
  // Requests whose drafts are accepted less often than in the timed roll-outs take longer.
  double token() const;
  double seconds(int64_t requests, int64_t tokens) const;
};

// The parts of a validation that will be measured, and the number of requests.
struct ValidationWork {
  int64_t rows = 0;
  bool answers_anew = false, acceptance = false, rollout = false, speed = false, lossless = false;
};

// Estimates of the seconds that each part takes, slightly above the extrapolated times. They are no bounds: other
// processes and a lower acceptance make a part longer, and early stopping makes it shorter.
struct ExpectedTime {
  double acceptance = 0, rollout = 0, speed = 0, lossless = 0;
  double total() const { return acceptance + rollout + speed + lossless; }
  std::string text() const;  // one line, which names the flags that shorten the validation
};
ExpectedTime expected_time(const RolloutCost& cost, const ValidateOptions& options, const ValidationWork& work);

}  // namespace specdec::deploy
