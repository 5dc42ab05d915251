#include "distill/gradient/optimizer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"

namespace specdec::distill {

namespace {

// Within each tensor, the share of a rank begins at a multiple of kShareStep values. So the vectorised update processes
// every value in the same SIMD lane as an optimizer that is not divided among ranks, and the result is bit-identical.
constexpr int64_t kShareStep = 64;
constexpr int64_t kPieceValues = int64_t{1} << 24;

}  // namespace

int64_t share_begin(int64_t first, int64_t values, int64_t total, int rank, int ranks) {
  const int64_t begin = std::clamp<int64_t>(total / ranks * rank + total % ranks * rank / ranks - first, 0, values);
  return begin == values ? values : begin / kShareStep * kShareStep;
}

// One tensor of the optimizer state in a checkpoint, in the order of layout(). The tensor has either the update counts
// of all parameters, or the member `part` (moment or master copy) of one parameter's slot.
struct AdamW::StateTensor {
  TensorShape shape;
  size_t parameter = 0;
  at::Tensor Slot::* part = nullptr;  // null: the update counts of all parameters
};

AdamW::AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options, const parallel::Ranks& ranks,
             bool shared)
    : parameters_(std::move(parameters)), options_(options), ranks_(ranks), shared_(shared && ranks.count() > 1) {
  first_.push_back(0);
  for (const NamedTensor& p : parameters_) first_.push_back(first_.back() + p.tensor.numel());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Slot slot{begin_of(i, ranks_.rank()), begin_of(i, ranks_.rank() + 1), {}, {}, {}, {}};
    slot.master = values(i, slot.begin, slot.end).to(at::kFloat);  // shares the parameter's storage if that is fp32
    slot.exp_avg = at::zeros_like(slot.master);
    slot.exp_avg_sq = at::zeros_like(slot.master);
    slot.steps = at::zeros({}, slot.master.options());
    slots_.push_back(std::move(slot));
  }
}

at::Tensor AdamW::values(size_t i, int64_t begin, int64_t end) const {
  return parameters_[i].tensor.detach().view(-1).slice(0, begin, end);
}

int64_t AdamW::begin_of(size_t i, int rank) const {
  const int64_t count = parameters_[i].tensor.numel();
  if (!shared_) return rank > ranks_.rank() ? count : 0;
  return share_begin(first_[i], count, first_.back(), rank, ranks_.count());
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
  std::vector<bool> updated;
  for (const NamedTensor& p : parameters_) updated.push_back(p.tensor.grad().defined());
  // Updates two groups of tensors: those with at least two dimensions, which have weight decay, and the others.
  for (const bool decayed : {true, false}) {
    std::vector<at::Tensor> weights, grads, m, v, steps;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const Slot& slot = slots_[i];
      if ((parameters_[i].tensor.dim() >= 2) != decayed || !updated[i]) continue;
      slot.steps.add_(1);
      if (slot.begin == slot.end) continue;
      weights.push_back(slot.master);
      grads.push_back(parameters_[i].tensor.grad().flatten().slice(0, slot.begin, slot.end).to(at::kFloat));
      m.push_back(slot.exp_avg);
      v.push_back(slot.exp_avg_sq);
      steps.push_back(slot.steps);
    }
    if (weights.empty()) continue;
    at::_foreach_mul_(grads, scale);
    at::_fused_adamw_(weights, grads, m, v, {}, steps, learning_rate, options_.beta1, options_.beta2,
                      decayed ? options_.weight_decay : 0.0, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false);
  }
  copy_masters();
  exchange(updated);
}

void AdamW::copy_masters() const {
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].tensor.scalar_type() != at::kFloat)
      values(i, slots_[i].begin, slots_[i].end).copy_(slots_[i].master);
}

// Broadcasts each rank's share of the updated values to all other ranks.
void AdamW::exchange(const std::vector<bool>& updated) const {
  if (!shared_) return;
  for (int rank = 0; rank < ranks_.count(); ++rank) {
    std::vector<at::Tensor> shares;
    for (size_t i = 0; i < parameters_.size(); ++i)
      if (updated[i]) shares.push_back(values(i, begin_of(i, rank), begin_of(i, rank + 1)));
    ranks_.broadcast(shares, rank);
  }
}

std::vector<AdamW::StateTensor> AdamW::tensors() const {
  std::vector<StateTensor> out;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& p = parameters_[i].tensor;
    const auto add = [&](const char* kind, at::Tensor Slot::* part) {
      out.push_back({{kind + parameters_[i].name, "F32", p.sizes().vec()}, i, part});
    };
    add("exp_avg.", &Slot::exp_avg);
    add("exp_avg_sq.", &Slot::exp_avg_sq);
    if (p.scalar_type() != at::kFloat) add("master.", &Slot::master);
  }
  out.push_back({{"steps", "F32", {static_cast<int64_t>(parameters_.size())}}, 0, nullptr});
  std::sort(out.begin(), out.end(),
            [](const StateTensor& a, const StateTensor& b) { return a.shape.name < b.shape.name; });
  return out;
}

std::vector<TensorShape> AdamW::layout() const {
  std::vector<TensorShape> out;
  for (StateTensor& t : tensors()) out.push_back(std::move(t.shape));
  return out;
}

void AdamW::visit_state(const std::function<void(const at::Tensor& piece)>& f) const {
  at::NoGradGuard guard;
  for (const StateTensor& t : tensors()) {
    if (!t.part) {
      std::vector<at::Tensor> steps;
      for (const Slot& slot : slots_) steps.push_back(slot.steps.cpu());
      if (ranks_.is_first() && !steps.empty()) f(at::stack(steps));
      continue;
    }
    const Slot& slot = slots_[t.parameter];
    const at::Tensor own = slot.*t.part;
    if (!shared_) {
      f(own.cpu());
      continue;
    }
    for (int rank = 0; rank < ranks_.count(); ++rank) {
      const int64_t end = begin_of(t.parameter, rank + 1);
      for (int64_t begin = begin_of(t.parameter, rank); begin < end; begin += kPieceValues) {
        const int64_t stop = std::min(end, begin + kPieceValues);
        const at::Tensor piece = rank == ranks_.rank() ? own.slice(0, begin - slot.begin, stop - slot.begin)
                                                       : at::empty({stop - begin}, own.options());
        ranks_.broadcast({piece}, rank);
        if (ranks_.is_first()) f(piece.cpu());
      }
    }
  }
}

void AdamW::load(const std::vector<std::string>& names,
                 const std::function<at::Tensor(const std::string& name)>& read) {
  at::NoGradGuard guard;
  std::set<std::string> unread(names.begin(), names.end());
  for (const StateTensor& t : tensors()) {
    const auto& [name, dtype, shape] = t.shape;
    at::Tensor whole;
    if (ranks_.is_first()) {
      if (unread.erase(name) == 0) throw Error(ErrorKind::kData, "optimizer state: " + name + " is missing");
      whole = read(name);
      if (whole.sizes() != at::IntArrayRef(shape))
        throw Error(ErrorKind::kData, "optimizer state: " + name + " has another shape than the parameter");
      whole = whole.flatten();
    }
    const int64_t count = c10::multiply_integers(shape);
    for (int64_t begin = 0; begin < count; begin += kPieceValues) {
      const int64_t end = std::min(count, begin + kPieceValues);
      const at::Tensor piece = whole.defined() ? whole.slice(0, begin, end) : at::empty({end - begin}, at::kFloat);
      ranks_.broadcast({piece});
      if (!t.part) {
        for (int64_t i = begin; i < end; ++i) slots_[static_cast<size_t>(i)].steps.copy_(piece[i - begin]);
        continue;
      }
      const Slot& slot = slots_[t.parameter];
      const int64_t from = std::max(begin, slot.begin), to = std::min(end, slot.end);
      if (from < to)
        (slot.*t.part).slice(0, from - slot.begin, to - slot.begin).copy_(piece.slice(0, from - begin, to - begin));
    }
  }
  if (ranks_.is_first() && !unread.empty())
    throw Error(ErrorKind::kData, "optimizer state: " + *unread.begin() + " belongs to no parameter");
  copy_masters();
}

}  // namespace specdec::distill
