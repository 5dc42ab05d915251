// Log-probabilities as a reply shows them: the target's own, softmax(logits) before temperature, cuts, penalties, bias
// and grammar (vLLM's raw_logprobs), so that they do not depend on how the token was drawn, nor on the draft.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace specdec::decode {

struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;  // natural; −inf where the target gives no mass
};
struct PositionLogprobs {
  TokenLogprob token;             // the token that stands there
  std::vector<TokenLogprob> top;  // the `count` likeliest, falling, ties by the lower id
};

// logits[V] of one position; count <= V tokens in `top`. Throws as distribution() does if no logit is finite or any is
// NaN or +inf.
PositionLogprobs logprobs_of(std::span<const float> logits, int32_t token, int count);

}  // namespace specdec::decode
