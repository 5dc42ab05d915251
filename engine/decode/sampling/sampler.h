// Turns logits into the distribution that tokens are drawn from. The functions are pure and work on host memory. Target
// and draft use the same ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/run_options.h"

namespace specdec::decode {

// Sets probs[V] to the distribution of `logits`[V] under `options`: softmax(logits / T), then top-k, top-p and min-p,
// each followed by renormalisation (the order of vLLM and transformers). If equal logits compete for the last places,
// top-k keeps the lowest ids. Top-p keeps the smallest prefix (descending, ties by lower id) whose mass reaches p.
// Greedy sampling gives probability 1 to the lowest arg max. `probs` may be the same memory as `logits`. A logit of
// −inf masks its token. Takes time linear in V, unless most weights are nearly equal: top-p sorts only the weights
// close to the smallest that it keeps. Throws Error(kInternal) if no logit is finite or any is NaN or +inf.
void distribution(std::span<const float> logits, const SamplingOptions& options, std::span<float> probs,
                  std::vector<int32_t>& scratch);

// Returns the lowest index of the largest value. Throws as distribution() does.
int32_t argmax(std::span<const float> row);

// Returns the largest probability of softmax(logits). A greedy draft uses it as its confidence, because the greedy
// distribution q itself has only the probabilities 0 and 1. Throws as distribution() does.
double max_probability(std::span<const float> logits);

// Inverts the cumulative distribution in id order: returns the smallest x with Σ_{y ≤ x} w_y > u · Σ w, where u is in
// (0,1). `weights` need not be normalised; an id with weight zero is never returned. Throws Error(kInternal) if no
// weight is positive.
int32_t draw(std::span<const float> weights, double u);

// Returns the overlap of two distributions, Σ_x min(p_x, q_x).
double overlap(std::span<const float> p, std::span<const float> q);

}  // namespace specdec::decode
