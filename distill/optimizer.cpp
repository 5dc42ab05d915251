#include "distill/optimizer.h"

#include <ATen/core/grad_mode.h>

#include <cmath>
#include <map>

#include "base/error.h"

namespace specdec::distill {

AdamW::AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options)
    : parameters_(std::move(parameters)), options_(options) {
  for (const NamedTensor& p : parameters_) {
    const at::Tensor weights = p.tensor.detach();
    masters_.push_back(weights.to(at::kFloat));  // shares the storage if it is fp32 already
    exp_avg_.push_back(at::zeros_like(masters_.back()));
    exp_avg_sq_.push_back(at::zeros_like(masters_.back()));
    steps_.push_back(at::zeros({}, masters_.back().options()));
  }
}

double AdamW::grad_norm() const {
  at::NoGradGuard guard;
  std::vector<at::Tensor> grads;
  for (const NamedTensor& p : parameters_)
    if (p.tensor.grad().defined()) grads.push_back(p.tensor.grad());
  if (grads.empty()) return 0;
  at::Tensor sum = at::zeros({}, grads.front().options().dtype(at::kDouble));
  for (const at::Tensor& norm : at::_foreach_norm(grads, 2, at::kFloat)) sum += norm.to(at::kDouble).square();
  return std::sqrt(sum.item<double>());
}

void AdamW::step(double learning_rate, double norm) {
  at::NoGradGuard guard;
  const double scale = options_.clip > 0 && norm > options_.clip ? options_.clip / norm : 1.0;
  // Updates two groups: tensors with at least two dimensions, which decay, and the rest.
  for (const bool decayed : {true, false}) {
    std::vector<at::Tensor> weights, grads, m, v, steps;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if ((masters_[i].dim() >= 2) != decayed || !parameters_[i].tensor.grad().defined()) continue;
      weights.push_back(masters_[i]);
      at::Tensor grad = parameters_[i].tensor.grad();
      grads.push_back(grad.scalar_type() == at::kFloat ? grad : grad.to(at::kFloat));
      m.push_back(exp_avg_[i]);
      v.push_back(exp_avg_sq_[i]);
      steps.push_back(steps_[i]);
    }
    if (weights.empty()) continue;
    at::_foreach_add_(steps, 1);
    at::_foreach_mul_(grads, scale);
    at::_fused_adamw_(weights, grads, m, v, {}, steps, learning_rate, options_.beta1, options_.beta2,
                      decayed ? options_.weight_decay : 0.0, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].tensor.scalar_type() != at::kFloat) parameters_[i].tensor.detach().copy_(masters_[i]);
}

std::vector<NamedTensor> AdamW::state() const {
  std::vector<NamedTensor> out;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i].name;
    out.push_back({"exp_avg." + name, exp_avg_[i]});
    out.push_back({"exp_avg_sq." + name, exp_avg_sq_[i]});
    if (parameters_[i].tensor.scalar_type() != at::kFloat) out.push_back({"master." + name, masters_[i]});
  }
  out.push_back({"steps", steps_.empty() ? at::zeros({0}) : at::stack(steps_)});
  return out;
}

void AdamW::load(const std::vector<NamedTensor>& state) {
  at::NoGradGuard guard;
  std::map<std::string, at::Tensor> found;
  for (const NamedTensor& t : state) found[t.name] = t.tensor;
  for (NamedTensor& slot : this->state()) {
    const auto it = found.find(slot.name);
    if (it == found.end()) throw Error(ErrorKind::kData, "optimizer state: " + slot.name + " is missing");
    if (!it->second.sizes().equals(slot.tensor.sizes()))
      throw Error(ErrorKind::kData, "optimizer state: " + slot.name + " has another shape than the parameter");
    if (slot.name == "steps") {
      for (size_t i = 0; i < steps_.size(); ++i) steps_[i].copy_(it->second[static_cast<int64_t>(i)]);
    } else {
      slot.tensor.copy_(it->second);
    }
    found.erase(it);
  }
  if (!found.empty())
    throw Error(ErrorKind::kData, "optimizer state: " + found.begin()->first + " belongs to no parameter");
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].tensor.scalar_type() != at::kFloat) parameters_[i].tensor.detach().copy_(masters_[i]);
}

}  // namespace specdec::distill
