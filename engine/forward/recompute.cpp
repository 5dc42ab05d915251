#include "engine/forward/recompute.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace specdec::model {

namespace {

using Run = std::function<at::Tensor(const at::Tensor&)>;

// Lets autograd's context own the function.
struct KeptRun : torch::CustomClassHolder {
  explicit KeptRun(Run function) : run(std::move(function)) {}
  Run run;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const Run& run) {
    context->save_for_backward({x});
    context->saved_data["run"] = at::IValue::make_capsule(c10::make_intrusive<KeptRun>(run));
    // Kernels may round differently without gradients, so the first run also has gradients enabled, and drops them.
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
  // Autograd records the call only if its input requires a gradient; otherwise the parameters would get no gradients.
  return Recomputed::apply(x.requires_grad() ? x : x.detach().requires_grad_(true), run);
}

}  // namespace specdec::model
