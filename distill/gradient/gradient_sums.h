// Sums the gradients of a training step in fp32, whatever the dtype of the parameters is. Without this class, autograd
// would sum the gradients of bf16 parameters in bf16.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "distill/gradient/optimizer.h"

namespace specdec::distill {

class GradientSums {
 public:
  explicit GradientSums(const std::vector<NamedTensor>& parameters);

  // Call clear() at the beginning of each step. It sets all sums to zero and removes the gradients of the parameters.
  void clear();
  // Returns the fp32 sum of a parameter, in the parameter's shape, so that a caller can add to it without autograd. The
  // same memory is reused in every step. Throws Error(kInternal) if `parameter` is not one of the parameters.
  at::Tensor& of(const at::Tensor& parameter);
  // Adds each parameter's .grad to its sum and clears the .grad.
  void take();
  // Sets each sum as the gradient of its parameter. A parameter whose sum is unchanged since clear() gets no gradient.
  void publish();

 private:
  struct Sum {
    at::Tensor parameter, value;
    bool used = false;  // something was added to the sum in this step
    bool kept = false;  // of() has returned `value`, so its memory must not be replaced
  };
  std::vector<Sum> sums_;
};

}  // namespace specdec::distill
