// One answer: prompt tokens in, tokens out, through Stepper. Used by generate and regenerate.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/decode/step.h"

namespace specdec::decode {

struct GenerateResult {
  std::vector<int32_t> tokens;  // generated part, EOS included when it ended the answer
  AcceptanceCounts counts;
  std::string finish_reason;  // "stop" | "length"
  double seconds = 0;         // from the first step, prefill excluded
  double prompt_seconds = 0;  // of prefill
};
// on_token: streamed as emitted; returning false stops. Throws Error(kUsage) for rules outside of their ranges or that
// leave no token.
GenerateResult generate(Stepper& stepper, const Request& request, const Drafting& drafting, const Clock& clock,
                        const std::function<bool(int32_t)>& on_token = {});

}  // namespace specdec::decode
