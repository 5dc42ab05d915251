// Generates one answer with a Stepper, from prompt tokens to answer tokens. `specdec generate` uses it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/decode/step.h"

namespace specdec::decode {

struct GenerateResult {
  std::vector<int32_t> tokens;  // the answer, including the EOS token that ended it
  AcceptanceCounts counts;
  std::string finish_reason;  // "stop" | "length"
  double seconds = 0;         // decoding time, without prefill
  double prompt_seconds = 0;  // prefill time
};
// Calls on_token for each token as it is emitted; if on_token returns false, the answer ends. Throws Error(kUsage) if
// max_tokens is below 1, a logits processor's value is out of range, or the processors leave no token.
GenerateResult generate(Stepper& stepper, const Request& request, const Drafting& drafting, const Clock& clock,
                        const std::function<bool(int32_t)>& on_token = {});

}  // namespace specdec::decode
