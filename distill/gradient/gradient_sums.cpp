#include "distill/gradient/gradient_sums.h"

#include <ATen/core/grad_mode.h>

#include "base/error.h"

namespace specdec::distill {

GradientSums::GradientSums(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& p : parameters) sums_.push_back({p.tensor, {}});
}

void GradientSums::clear() {
  for (Sum& sum : sums_) {
    sum.used = false;
    if (!sum.kept) sum.value = at::Tensor();
    sum.parameter.mutable_grad() = at::Tensor();
  }
}

at::Tensor& GradientSums::of(const at::Tensor& parameter) {
  at::NoGradGuard guard;
  for (Sum& sum : sums_) {
    if (!sum.parameter.is_same(parameter)) continue;
    if (!sum.value.defined())
      sum.value = at::zeros(parameter.sizes(), parameter.options().dtype(at::kFloat).requires_grad(false));
    else if (!sum.used)
      sum.value.zero_();
    sum.used = sum.kept = true;
    return sum.value;
  }
  throw Error(ErrorKind::kInternal, "gradient sums: this tensor is not a parameter");
}

void GradientSums::take() {
  at::NoGradGuard guard;
  for (Sum& sum : sums_) {
    at::Tensor& grad = sum.parameter.mutable_grad();
    if (!grad.defined()) continue;
    if (sum.kept)
      of(sum.parameter).add_(grad);
    else if (sum.used)
      sum.value.add_(grad);
    else
      sum.value = grad.to(at::kFloat);
    sum.used = true;
    grad = at::Tensor();
  }
}

void GradientSums::publish() {
  for (Sum& sum : sums_) sum.parameter.mutable_grad() = sum.used ? sum.value : at::Tensor();
}

}  // namespace specdec::distill
