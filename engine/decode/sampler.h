// Logits → the distribution as served. Pure functions on host memory, the same for target and draft.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/run_options.h"

namespace specdec::decode {

// probs[V] = distribution of `logits`[V] under `options`: softmax(logits / T), then top-k, top-p, min-p, each followed
// by renormalisation (order of vLLM and transformers). Ties at the top-k border are broken by the lower id; top-p keeps
// the smallest prefix (descending, ties by lower id) whose mass reaches p. Greedy: one-hot at the lowest arg max. probs
// may be the very memory of logits. −inf logits are masked tokens. Linear in V: nothing longer than the kept set is
// sorted. Throws Error(kInternal) if no logit is finite or any is NaN or +inf.
void distribution(std::span<const float> logits, const SamplingOptions& options, std::span<float> probs,
                  std::vector<int32_t>& scratch);

int32_t argmax(std::span<const float> row);  // lowest index of the largest value; throws as distribution() does

// Largest probability of softmax(logits): a greedy draft's confidence, since its own q is one-hot. Throws as
// distribution() does.
double max_probability(std::span<const float> logits);

// Inverse CDF in id order: smallest x with Σ_{y ≤ x} w_y > u · Σ w. weights need not be normalised; never returns a
// zero-weight id. u in (0,1). Throws Error(kInternal) if no weight is positive.
int32_t draw(std::span<const float> weights, double u);

// Σ_x min(p_x, q_x).
double overlap(std::span<const float> p, std::span<const float> q);

}  // namespace specdec::decode
