// Distillation losses with their gradients in one call: ce, kl, tv and lk_hybrid over rows of logits.
// Formulas: Samarin et al. 2026 (LK losses, arXiv 2602.23881). KL(p ‖ q) = Σ p log(p/q); TV = 1 − Σ min(p, q); LK hybrid =
// λ KL + (1 − λ) TV with λ = exp(−η ā), ā the detached mean acceptance of the rows at hand. All arithmetic in fp32.
#pragma once

#include <ATen/ATen.h>

#include "distill/options.h"

namespace specdec::distill {

struct LossOptions {
  Loss loss = Loss::kLkHybrid;
  double eta = 3.0;          // of lk_hybrid
  double temperature = 1.0;  // p, q = softmax(logits / temperature); > 0
};

struct LossInput {
  at::Tensor draft;   // [T, V] fp32, bf16 or fp16: logits
  at::Tensor target;  // [T, V] any of these dtypes, same device; undefined for ce
  at::Tensor labels;  // [T] int64, the next token; read by ce only
  at::Tensor rows;    // [R] int64 on the CPU: the rows that count, ascending (the token at t + 1 is to be learnt)
  double weight = 1;  // of this call in the gradient: R / rows of the whole optimiser step
};

struct LossResult {
  double loss = 0;        // mean over the rows; NaN when any logit is not finite
  double acceptance = 0;  // detached mean of Σ min(p, q); NaN for ce
  double kl_weight = 0;   // λ
  at::Tensor grad;        // [T, V] in the draft's dtype: weight · d loss / d draft; rows that do not count are zero
};

// Throws Error(kInternal) for R = 0 or shapes that do not fit. Draft logits may require grad; nothing is recorded:
// the caller runs draft.backward(grad).
LossResult loss_and_grad(const LossOptions& options, const LossInput& input);
// The same with ATen operations on any device: what loss_and_grad runs off the CPU.
LossResult loss_and_grad_aten(const LossOptions& options, const LossInput& input);

}  // namespace specdec::distill
