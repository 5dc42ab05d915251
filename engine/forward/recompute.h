// Recomputes activations in the backward pass (Chen et al. 2016, arXiv 1604.06174): a part of a model keeps only its
// input for the backward pass, and runs again there.
#pragma once

#include <ATen/ATen.h>

#include <functional>

namespace specdec::model {

// Returns run(x), whose gradient is computed by calling `run` a second time, under autograd, in the backward pass. The
// gradients of x and of the parameters that `run` reads are those of run(x) itself, bit for bit if `run` is
// deterministic. `run` is kept until then, so what it refers to must outlive the backward pass. Its result may depend
// on other tensors that require a gradient only if these are leaves (parameters). With gradients disabled this is
// run(x) alone.
at::Tensor recomputed(const at::Tensor& x, std::function<at::Tensor(const at::Tensor&)> run);

}  // namespace specdec::model
