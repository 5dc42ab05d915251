// Computes the loss of a draft from its final hidden states, for a chunk of rows at a time: the matrix product of the
// output head, the loss, and the gradients of hidden states and head. With a vocabulary of 150,000, the logits of a
// whole batch would take most of a step's memory and most of its time.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>

#include "distill/loss/losses.h"
#include "distill/teacher/teacher.h"

namespace specdec::distill {

struct HeadLossInput {
  at::Tensor hidden;                 // [R, E] in the head's dtype: the rows in the loss, after the final norm
  at::Tensor head;                   // [V, E], or [D, E] for a draft with only D tokens: logits = hidden · headᵀ
  double soft_cap = 0;               // see DecoderConfig::final_soft_cap
  TargetRows target;                 // logits of the target at the same rows; empty if the loss is only ce
  at::Tensor labels;                 // [R] int64 on the CPU, see LossInput::labels
  at::Tensor kept;                   // see LossInput::kept
  at::Tensor temperatures, weights;  // [R] or undefined, as in LossInput
  double weight = 1;                 // see LossInput::weight
  int64_t chunk_rows = 0;            // rows computed at a time; 0 = head_loss_rows()
};

struct HeadLoss {
  double loss = 0, acceptance = 0;  // means over the R rows, as in LossResult
  at::Tensor hidden_grad;           // [R, E] in the dtype of `hidden`
};

// Returns the loss and the gradient of `hidden`, and adds the head's gradient to head_grad, [V, E] or [D, E] fp32.
// Autograd records nothing. The products run in the head's dtype; sums over chunks are in fp32. If the loss is not
// finite, the gradients are not valid. The λ of lk_hybrid is computed from options.acceptance, which must be set.
// `between` is called before every chunk and may throw. Throws Error(kInternal) for R = 0 or inconsistent shapes.
HeadLoss head_loss(const LossOptions& options, const HeadLossInput& input, at::Tensor& head_grad,
                   const std::function<void()>& between = {});

// Returns the number of rows of a chunk: the largest number with at most 32 M logits in total, but at least 16.
int64_t head_loss_rows(int64_t vocab);

}  // namespace specdec::distill
