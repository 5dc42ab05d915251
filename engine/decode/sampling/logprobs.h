// Computes the log-probabilities in a reply. They are the target's log softmax(logits) before logits processors,
// temperature, top-k, top-p and min-p (vLLM's raw_logprobs), so they depend neither on how the token was drawn nor on
// the draft.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace specdec::decode {

struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;  // natural logarithm; −inf if the target's probability is 0
};
struct PositionLogprobs {
  TokenLogprob token;             // the token that the text has at this position
  std::vector<TokenLogprob> top;  // the `count` likeliest tokens, in descending order, ties by lower id
};

// Returns the log-probabilities of one position, with `count` <= V tokens in `top`. `logits` has V values. Throws
// Error(kInternal), as distribution() does, if no logit is finite or any is NaN or +inf.
PositionLogprobs logprobs_of(std::span<const float> logits, int32_t token, int count);

}  // namespace specdec::decode
