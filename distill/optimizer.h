// AdamW with decoupled weight decay (Loshchilov & Hutter 2019; the arithmetic is that of torch.optim.AdamW, fused) and
// clipping by the global norm. Parameters in bf16 or fp16 have an fp32 master copy.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace specdec::distill {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.0;  // applies to tensors with at least two dimensions; norms and biases do not decay
  double clip = 1.0;          // largest global gradient norm, 0 = no clipping
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

class AdamW {
 public:
  // `parameters` are leaf tensors. step() and load() update them in place.
  AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options);

  // Returns the global norm of the gradients before clipping; a parameter without a gradient counts as zero. If the
  // norm is NaN or inf, the caller must not call step().
  double grad_norm() const;
  // Updates the parameters once with their current gradients, scaled by min(1, clip / norm); `norm` is the result of
  // grad_norm().
  void step(double learning_rate, double norm);

  // state() returns the tensors that a checkpoint keeps: moments "exp_avg.<name>" and "exp_avg_sq.<name>",
  // "master.<name>" for low-precision parameters, and "steps". load() throws Error(kData) for a missing, unknown or
  // wrongly shaped tensor.
  std::vector<NamedTensor> state() const;
  void load(const std::vector<NamedTensor>& state);

 private:
  std::vector<NamedTensor> parameters_;
  AdamWOptions options_;
  // masters_[i] is the fp32 copy of a parameter, or the parameter itself if it is fp32.
  std::vector<at::Tensor> masters_, exp_avg_, exp_avg_sq_, steps_;
};

}  // namespace specdec::distill
