#include "engine/forward/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace specdec::model {

namespace {

using Run = std::function<at::Tensor(const at::Tensor&)>;

// Wraps the function in a class that autograd's context can own.
struct KeptRun : torch::CustomClassHolder {
  explicit KeptRun(Run function) : run(std::move(function)) {}
  Run run;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Run& run) {
    context->save_for_backward({x});
    context->saved_data["run"] = at::IValue::make_capsule(c10::make_intrusive<KeptRun>(run));
    // Enables gradients in the first run too, because kernels may round differently without gradients. The result is
    // detached, so these gradients are not used.
    const at::AutoGradMode gradients(true);
    return run(x.detach().requires_grad_(true)).detach();
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list upstream) {
    const auto kept = context->saved_data["run"].toCapsule();
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    const at::AutoGradMode gradients(true);
    const at::Tensor out = static_cast<const KeptRun&>(*kept).run(x);
    torch::autograd::backward({out}, {upstream[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

at::Tensor recomputed(const at::Tensor& x, Run run) {
  if (!at::GradMode::is_enabled()) return run(x);
  // Makes the input require a gradient. Otherwise autograd would not record the call, and the parameters would get no
  // gradients.
  return Recomputed::apply(x.requires_grad() ? x : x.detach().requires_grad_(true), run);
}

}  // namespace specdec::model
