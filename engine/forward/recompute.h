// Recomputes activations in the backward pass (Chen et al. 2016, arXiv 1604.06174) to save memory: a part of a model
// stores only its input in the forward pass, and runs again in the backward pass.
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace specdec::model {

// Returns run(x). The backward pass calls `run` a second time under autograd to compute the gradients of x and of the
// parameters that `run` reads. These gradients equal those of calling run(x) directly, bit for bit if `run` is
// deterministic. Everything that `run` refers to must outlive the backward pass. Apart from x, the result of `run` may
// depend on tensors that require a gradient only if these are leaves (parameters). If gradients are disabled, run(x) is
// called once and nothing is recorded.
at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> run);

}  // namespace specdec::model
