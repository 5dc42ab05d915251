#include "distill/teacher/head_loss.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "distill/loss/loss_rows.h"

namespace specdec::distill {

namespace {

// Rows of the head in a block, used when the gradient must be converted to fp32. A block fits in a CPU cache.
constexpr int64_t kHeadBlock = 2048;

// Adds gradᵀ · hidden to sum [V, E] fp32; grad [n, V] and hidden [n, E] have one dtype.
void add_head_gradient(const at::Tensor& grad, const at::Tensor& hidden, at::Tensor& sum) {
  if (grad.scalar_type() == at::kFloat) {
    sum.addmm_(grad.t(), hidden);
    return;
  }
  const bool widens = sum.is_cpu() && grad.scalar_type() == at::kBFloat16 && sum.is_contiguous();
  at::Tensor room;
  for (int64_t begin = 0; begin < sum.size(0); begin += kHeadBlock) {
    const int64_t count = std::min(kHeadBlock, sum.size(0) - begin);
    if (!room.defined() || room.size(0) != count) room = at::empty({count, sum.size(1)}, hidden.options());
    at::mm_out(room, grad.narrow(1, begin, count).t(), hidden);
    at::Tensor part = sum.narrow(0, begin, count);
    if (!widens) {
      part.add_(room);
      continue;
    }
    const auto* from = static_cast<const uint16_t*>(room.const_data_ptr());
    float* to = part.mutable_data_ptr<float>();
    at::parallel_for(0, room.numel(), 65536, [&](int64_t a, int64_t b) { add_bf16(from + a, b - a, to + a); });
  }
}

void check(const LossOptions& options, const HeadLossInput& in, const at::Tensor& head_grad) {
  const bool fits = in.hidden.dim() == 2 && in.hidden.size(0) > 0 && in.head.dim() == 2 &&
                    in.head.size(1) == in.hidden.size(1) && head_grad.sizes().equals(in.head.sizes()) &&
                    head_grad.scalar_type() == at::kFloat && in.labels.numel() == in.hidden.size(0);
  if (!fits || (options.mix.needs_target() && !in.target) || (options.mix.lk_hybrid > 0 && !options.acceptance))
    throw Error(ErrorKind::kInternal,
                "head_loss: expected hidden rows [R, E], a head [V, E] with an fp32 gradient, "
                "labels [R], a target where the loss needs one, and a mean acceptance for "
                "lk_hybrid");
}

}  // namespace

int64_t head_loss_rows(int64_t vocab) { return std::max<int64_t>(16, (int64_t{1} << 25) / vocab / 16 * 16); }

HeadLoss head_loss(const LossOptions& options, const HeadLossInput& in, at::Tensor& head_grad,
                   const std::function<void()>& between) {
  check(options, in, head_grad);
  at::NoGradGuard guard;
  const at::Tensor hidden = in.hidden.detach(), head = in.head.detach();
  const int64_t rows = hidden.size(0),
                most = std::min(rows, in.chunk_rows > 0 ? in.chunk_rows : head_loss_rows(head.size(0)));
  at::Tensor room = at::empty({most, head.size(0)}, hidden.options());
  HeadLoss out;
  out.hidden_grad = at::empty_like(hidden);
  for (int64_t begin = 0; begin < rows; begin += most) {
    if (between) between();
    const int64_t end = std::min(rows, begin + most), count = end - begin;
    const double share = static_cast<double>(count) / static_cast<double>(rows);
    const at::Tensor chunk = hidden.slice(0, begin, end);
    LossInput input;
    input.draft = room.narrow(0, 0, count);
    at::mm_out(input.draft, chunk, head.t());
    if (in.soft_cap != 0) input.draft.div_(in.soft_cap).tanh_().mul_(in.soft_cap);
    if (in.target) input.target = in.target(begin, end, {input.draft, in.kept});
    input.labels = in.labels.slice(0, begin, end);
    input.rows = at::arange(count, at::kLong);
    input.weight = in.weight * share;
    input.kept = in.kept;
    if (in.temperatures.defined()) input.temperatures = in.temperatures.slice(0, begin, end);
    if (in.weights.defined()) input.weights = in.weights.slice(0, begin, end);
    const at::Tensor capped = in.soft_cap != 0 ? input.draft.clone() : at::Tensor();
    input.grad = input.draft;
    const LossResult result = loss_and_grad(options, input);
    out.loss += share * result.loss;
    out.acceptance += share * result.acceptance;
    if (!std::isfinite(result.loss)) return out;
    // With y = cap · tanh(x / cap), the derivative dy/dx is 1 − (y / cap)².
    if (capped.defined()) input.grad.mul_(1 - (capped / in.soft_cap).square());
    at::Tensor hidden_grad = out.hidden_grad.slice(0, begin, end);
    at::mm_out(hidden_grad, input.grad, head);
    add_head_gradient(input.grad, chunk, head_grad);
  }
  return out;
}

}  // namespace specdec::distill
