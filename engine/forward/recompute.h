// Recomputes activations in the backward pass (Chen et al. 2016, arXiv 1604.06174): a part of a model stores only its
// input, and runs again in the backward pass.
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace specdec::model {

// Returns run(x). The backward pass calls `run` a second time under autograd to compute the gradients of x and of the
// parameters that `run` reads. They equal the gradients of run(x) itself, bit for bit if `run` is deterministic.
// Everything that `run` refers to must outlive the backward pass. The result of `run` may depend on other tensors that
// require a gradient only if these are leaves (parameters). With gradients disabled, only run(x) is called.
at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> run);

}  // namespace specdec::model
