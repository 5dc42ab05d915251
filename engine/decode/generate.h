// One answer: prompt tokens in, tokens out, through Stepper. Used by generate, validate, bench and regenerate.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/decode/step.h"

namespace specdec::decode {

struct GenerateRequest {
  std::vector<int32_t> prompt;
  int64_t max_tokens = 256;
  std::vector<int32_t> eos_ids;  // empty: EOS is ignored
  SamplingOptions sampling;
  LogitRules rules;
  SpeculationOptions speculation;  // k = 0: plain
  uint64_t seed = 0;
};
struct GenerateResult {
  std::vector<int32_t> tokens;  // generated part, EOS included when it ended the answer
  AcceptanceCounts counts;
  std::string finish_reason;  // "stop" | "length"
  double seconds = 0;         // from the first step, prompt pass excluded
  double prompt_seconds = 0;
};
// on_token: streamed as emitted; returning false stops. Throws Error(kUsage) for rules outside of their ranges or that
// leave no token.
GenerateResult generate(Stepper& stepper, const GenerateRequest& request, CostModel* costs, const Clock& clock,
                        const std::function<bool(int32_t)>& on_token = {});

}  // namespace specdec::decode
