// One row of the distillation losses on host memory: softmax of both models, overlap, and the gradient in the draft's logits.
// Two passes of exponentials instead of stored probabilities: the rows stay in the first-level cache. A NaN or +inf logit
// makes the row's figures NaN; -inf is a token without probability.
#pragma once

#include <cstdint>

namespace specdec::distill {

struct RowFigures {
  float loss = 0;     // KL(p ‖ q), or cross entropy of the label
  float overlap = 0;  // Σ min(p, q) = 1 − TV
  float inside = 0;   // Σ q over q < p: what the gradient of TV is centred by
};

// p[V] = softmax(target · inverse_temperature), q[V] likewise of the draft.
RowFigures overlap_row(const float* target, const float* draft, int64_t vocab, float inverse_temperature, float* p, float* q);

// grad[V] = kl_weight · (q − p) + tv_weight · q · (inside − 1[q < p]); `figures` and p, q from overlap_row. grad may be q.
// d KL/dz = q − p; d TV/dz = −q (1[q < p] − Σ_{q < p} q), with TV = 1 − Σ min(p, q).
void overlap_grad(const float* p, const float* q, int64_t vocab, const RowFigures& figures, float kl_weight, float tv_weight,
                  float* grad);

// Cross entropy of `label` under softmax(draft · inverse_temperature); grad[V] = weight · (q − onehot).
float cross_entropy_row(const float* draft, int64_t vocab, int64_t label, float inverse_temperature, float weight, float* grad);

}  // namespace specdec::distill
