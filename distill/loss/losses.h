// Computes the distillation losses and their gradients in one call, over rows of logits; LossMix
// (distill/settings/options.h) names the terms. Formulas: Agarwal et al. 2024 (generalised JSD, arXiv 2306.13649), Zhou
// et al. 2024 (DistillSpec: reverse KL, TV, arXiv 2310.08461), Samarin et al. 2026 (LK losses: −log α and the hybrid,
// arXiv 2602.23881). All arithmetic is in fp32.
#pragma once

#include <ATen/ATen.h>

#include <optional>

#include "distill/settings/options.h"

namespace specdec::distill {

struct LossOptions {
  LossMix mix = {.lk_hybrid = 1};
  double eta = 3.0;          // η of lk_hybrid
  double temperature = 1.0;  // p, q = softmax(logits / temperature); > 0
  // The mean acceptance ā from which lk_hybrid computes its λ. If ā is not set, a first pass over the rows computes ā.
  std::optional<double> acceptance = {};
};

struct LossInput {
  at::Tensor draft;   // logits [T, V] in fp32, bf16 or fp16; [T, D] if the draft has only the D tokens in `kept`
  at::Tensor target;  // [T, V] fp32, bf16 or fp16, on the same device; undefined if the loss is only ce
  at::Tensor labels;  // [T] int64, the next token; only ce reads it
  // [R] int64 on the CPU, ascending: the rows in the loss. Row t is in the loss if token t + 1 has loss_mask 1.
  at::Tensor rows;
  double weight = 1;  // multiplies the gradient; for a mean over an optimizer step: R / rows of that step
  // [D] int64 on the CPU, ascending: the token ids of the columns of `draft` if the draft has a reduced vocabulary;
  // undefined if it has the whole vocabulary. With a reduced vocabulary:
  //   * kl, rkl and jsd renormalise the target over these ids, and leave out rows whose likeliest token is not one of
  //     these ids (as EAGLE and SpecForge do);
  //   * acceptance, tv and nla use the target without renormalisation;
  //   * ce leaves out labels that are not among the ids.
  // Every mean is over all R rows.
  at::Tensor kept = {};
  // Output tensor for the gradient: contiguous, with the shape and dtype of `draft`; it may be `draft` itself. If
  // undefined, a new tensor is made.
  at::Tensor grad = {};
  // [T] fp32 on the CPU: the temperature of each row, and the weight of each row in loss and gradient. An undefined
  // tensor stands for options.temperature, or weight 1, in every row. Every mean divides by the number of rows, not by
  // the sum of the weights; acceptance is not weighted.
  at::Tensor temperatures = {}, weights = {};
};

struct LossResult {
  double loss = 0;        // mean over the rows; NaN if a logit is NaN or +inf
  double acceptance = 0;  // mean of Σ min(p, q); NaN if the loss is only ce
  double kl_weight = 0;   // weight of the term kl, plus λ times the weight of the term lk_hybrid
  at::Tensor grad;        // [T, V] in the draft's dtype: weight · d loss / d draft; rows not in `rows` are zero
};

// Returns the loss and its gradient. Throws Error(kInternal) for R = 0 or inconsistent shapes. Autograd records
// nothing, even if the draft's logits require grad: the caller runs draft.backward(grad).
LossResult loss_and_grad(const LossOptions& options, const LossInput& input);
// The same as loss_and_grad(), in ATen operations on any device. loss_and_grad() calls it for tensors on a GPU.
LossResult loss_and_grad_aten(const LossOptions& options, const LossInput& input);

}  // namespace specdec::distill
