// Functions for one row of the distillation losses in host memory: softmax of target and draft, overlap Σ min(p, q),
// and the gradient of the losses with respect to the draft's logits. A NaN or +inf logit makes the row's results NaN.
// Every probability is at least e^-87 times the largest one, so that reverse KL stays finite.
#pragma once

#include <cstdint>

namespace specdec::distill {

// Converts bf16 bits to fp32, and fp32 to bf16 rounded to nearest even; NaN stays NaN.
void widen_bf16(const uint16_t* bits, int64_t count, float* out);
void narrow_bf16(const float* values, int64_t count, uint16_t* out);
// Adds bf16 values to fp32 sums.
void add_bf16(const uint16_t* bits, int64_t count, float* sums);

// Returns the index of the largest value, the first one among equals.
int64_t first_largest(const float* values, int64_t count);

struct RowFigures {
  // The target's total probability of the tokens in the draft's vocabulary. p is renormalised over these tokens, so the
  // target's own probabilities, which acceptance uses, are mass · p.
  float mass = 1;
  float kl = 0;       // KL(p ‖ q)
  float overlap = 0;  // Σ min(mass · p, q) = 1 − TV
  float inside = 0;   // Σ q over tokens with q < mass · p; a term in the gradient of TV
  float max_target = 0, max_draft = 0;
  float log_sum_target = 0, log_sum_draft = 0;  // log Σ exp((logit − max) · inverse_temperature)
};

// Writes p[V] = softmax(target · inverse_temperature) and q[V] = softmax(draft · inverse_temperature).
RowFigures overlap_row(const float* target, const float* draft, int64_t vocab, float inverse_temperature, float mass,
                       float* p, float* q);

// keep_row copies the target's logits [vocab] at the ids kept[count] to `out`. It returns the softmax mass of these
// ids, at least 1e-30, and whether the likeliest token is among them. A NaN or +inf logit makes the mass NaN.
struct Kept {
  float mass;
  bool holds_argmax;
};
Kept keep_row(const float* target, int64_t vocab, float inverse_temperature, const int64_t* kept, int64_t count,
              float* out);

// Writes grad[V] = kl_weight · (q − p) + tv_weight · q · (inside − 1[q < mass · p]). `figures`, p and q must come from
// overlap_row. `grad` may be the same array as `q`.
// Derivation: d KL/dz = q − p. TV = 1 − Σ min(mass · p, q), so d TV/dz = −q (1[q < mass · p] − Σ_{q < mass · p} q). The
// gradient of −log α is the gradient of TV divided by α.
void overlap_grad(const float* p, const float* q, int64_t vocab, const RowFigures& figures, float kl_weight,
                  float tv_weight, float* grad);

struct DivergenceWeights {
  float rkl = 0, jsd = 0;
  float beta = 0.5f;
};
struct Divergences {
  float rkl = 0;  // Σ q log(q / p)
  float jsd = 0;  // β Σ p log(p / m) + (1 − β) Σ q log(q / m), m = β p + (1 − β) q
};
// Adds rkl · d RKL/dz + jsd · d JSD/dz to grad[V], which must be neither p nor q. Derivation: for a loss Σ f(q), d/dz =
// q (f' − Σ q f'); f' is log(q / p) for RKL and (1 − β) log(q / m) for JSD, each up to a constant.
Divergences add_divergences(const float* target, const float* draft, const float* p, const float* q, int64_t vocab,
                            float inverse_temperature, const RowFigures& figures, const DivergenceWeights& weights,
                            float* grad);

// Returns the cross entropy of `label` under q = softmax(draft · inverse_temperature), and writes grad[V] = weight · (q
// − onehot).
float cross_entropy_row(const float* draft, int64_t vocab, int64_t label, float inverse_temperature, float weight,
                        float* grad);

}  // namespace specdec::distill
