// AdamW with decoupled weight decay (Loshchilov & Hutter 2019; arithmetic as torch.optim.AdamW, fused) and clipping by
// the global norm. Parameters in bf16 or fp16 keep an fp32 master copy.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

namespace specdec::distill {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.0;  // of tensors with at least two dimensions; norms and biases do not decay
  double clip = 1.0;          // largest global gradient norm, 0 = no clipping
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

class AdamW {
 public:
  // `parameters`: leaf tensors, updated in place.
  AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options);

  // Global norm of the gradients before clipping; a parameter without a gradient counts as zero. NaN or inf: the caller
  // must not step.
  double grad_norm() const;
  // One update with the gradients at hand, scaled by min(1, clip / norm); `norm` from grad_norm().
  void step(double learning_rate, double norm);
  void zero_grad();

  // Moments "exp_avg.<name>", "exp_avg_sq.<name>", for low-precision parameters "master.<name>", and "steps": what a
  // checkpoint keeps. load() throws Error(kData) for a missing, left-over or wrongly shaped tensor.
  std::vector<NamedTensor> state() const;
  void load(const std::vector<NamedTensor>& state);

 private:
  std::vector<NamedTensor> parameters_;
  AdamWOptions options_;
  std::vector<at::Tensor> masters_, exp_avg_, exp_avg_sq_, steps_;  // masters_[i] is the parameter itself in fp32
};

}  // namespace specdec::distill
