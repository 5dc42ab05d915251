#include "distill/losses.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "distill/loss_rows.h"

namespace specdec::distill {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Weights {
  double kl, tv;
};

Weights weights_of(const LossOptions& options, double acceptance) {
  switch (options.loss) {
    case Loss::kKl:
      return {1, 0};
    case Loss::kTv:
      return {0, 1};
    case Loss::kLkHybrid: {
      const double lambda = std::exp(-options.eta * acceptance);
      return {lambda, 1 - lambda};
    }
    case Loss::kCrossEntropy:
      return {0, 0};
  }
  throw Error(ErrorKind::kInternal, "losses: unknown loss");
}

// One more than a row's share of work that is worth a thread.
int64_t grain(int64_t vocab) { return std::max<int64_t>(1, 65536 / vocab); }

// Host rows through distill/loss_rows: figures of every row first (λ needs their mean), then gradients.
LossResult host_loss(const LossOptions& options, const LossInput& in) {
  const at::Tensor draft = in.draft.detach().to(at::kFloat).contiguous();
  at::Tensor grad = at::empty_like(draft);
  const int64_t vocab = draft.size(1), count = in.rows.numel();
  const int64_t* rows = in.rows.const_data_ptr<int64_t>();
  const float* b = draft.const_data_ptr<float>();
  float* g = grad.mutable_data_ptr<float>();
  for (int64_t i = 0, t = 0; t < draft.size(0); ++t) {
    if (i < count && rows[i] == t)
      ++i;
    else
      std::fill_n(g + t * vocab, vocab, 0.0f);
  }
  const float inverse = static_cast<float>(1 / options.temperature);
  // The mean over rows, the weight of the call and d(logit / T)/d logit in one factor.
  const double scale = in.weight / static_cast<double>(count) / options.temperature;
  std::vector<RowFigures> figures(static_cast<size_t>(count));
  LossResult result;
  if (options.loss == Loss::kCrossEntropy) {
    const int64_t* labels = in.labels.const_data_ptr<int64_t>();
    at::parallel_for(0, count, grain(vocab), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = rows[i];
        figures[static_cast<size_t>(i)].loss =
            cross_entropy_row(b + t * vocab, vocab, labels[t], inverse, static_cast<float>(scale), g + t * vocab);
      }
    });
    for (const RowFigures& f : figures) result.loss += f.loss;
    result.loss /= static_cast<double>(count);
    result.acceptance = kNaN;
  } else {
    const at::Tensor target = in.target.detach().to(at::kFloat).contiguous();
    const float* a = target.const_data_ptr<float>();
    at::parallel_for(0, count, grain(vocab), [&](int64_t begin, int64_t end) {
      std::vector<float> p(static_cast<size_t>(vocab)), q(static_cast<size_t>(vocab));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = rows[i];
        figures[static_cast<size_t>(i)] = overlap_row(a + t * vocab, b + t * vocab, vocab, inverse, p.data(), q.data());
      }
    });
    double kl = 0, overlap = 0;
    for (const RowFigures& f : figures) {
      kl += f.loss;
      overlap += f.overlap;
    }
    kl /= static_cast<double>(count);
    result.acceptance = overlap / static_cast<double>(count);
    const Weights w = weights_of(options, result.acceptance);
    at::parallel_for(0, count, grain(vocab), [&](int64_t begin, int64_t end) {
      std::vector<float> p(static_cast<size_t>(vocab));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t t = rows[i];
        float* row = g + t * vocab;
        const RowFigures f = overlap_row(a + t * vocab, b + t * vocab, vocab, inverse, p.data(), row);
        overlap_grad(p.data(), row, vocab, f, static_cast<float>(w.kl * scale), static_cast<float>(w.tv * scale), row);
      }
    });
    result.kl_weight = w.kl;
    result.loss = (w.kl == 0 ? 0 : w.kl * kl) + (w.tv == 0 ? 0 : w.tv * (1 - result.acceptance));
    if (std::isnan(kl)) result.loss = kNaN;
  }
  result.grad = grad.to(in.draft.scalar_type());
  return result;
}

struct DeviceRows {
  at::Tensor p, q, kl, overlap;
};

// The same figures with ATen operations, for a block of rows on any device.
DeviceRows device_rows(const at::Tensor& target, const at::Tensor& draft, const at::Tensor& index, double temperature) {
  const at::Tensor log_p = at::log_softmax(target.index_select(0, index).to(at::kFloat) / temperature, -1);
  const at::Tensor log_q = at::log_softmax(draft.index_select(0, index).to(at::kFloat) / temperature, -1);
  DeviceRows r{log_p.exp(), log_q.exp(), {}, {}};
  // A token without probability in p adds nothing, whatever q says (0 · −∞).
  r.kl = at::where(r.p > 0, r.p * (log_p - log_q), at::zeros({}, r.p.options())).sum(-1);
  r.overlap = at::minimum(r.p, r.q).sum(-1);
  return r;
}

// Blocks of rows keep the fp32 copies of large vocabularies small.
LossResult device_loss(const LossOptions& options, const LossInput& in) {
  const at::Tensor draft = in.draft.detach();
  const at::Tensor rows = in.rows.to(draft.device());
  const int64_t count = rows.numel(), vocab = draft.size(1);
  const int64_t block = std::max<int64_t>(1, (int64_t{1} << 26) / vocab);
  const double scale = in.weight / static_cast<double>(count) / options.temperature;
  LossResult result;
  result.grad = at::zeros_like(draft);
  at::Tensor kl = at::zeros({}, draft.options().dtype(at::kDouble)), overlap = kl.clone();
  Weights w{0, 0};
  const bool ce = options.loss == Loss::kCrossEntropy;
  for (int pass = ce ? 1 : 0; pass < 2; ++pass) {
    for (int64_t begin = 0; begin < count; begin += block) {
      const at::Tensor index = rows.slice(0, begin, std::min(count, begin + block));
      if (ce) {
        const at::Tensor log_q = at::log_softmax(draft.index_select(0, index).to(at::kFloat) / options.temperature, -1);
        const at::Tensor label = in.labels.to(draft.device()).index_select(0, index).unsqueeze(1);
        kl -= log_q.gather(1, label).sum(at::kDouble);
        at::Tensor g = log_q.exp();
        g.scatter_add_(1, label, at::full(label.sizes(), -1.0, g.options()));
        result.grad.index_copy_(0, index, g.mul_(scale).to(draft.scalar_type()));
        continue;
      }
      const DeviceRows r = device_rows(in.target.detach(), draft, index, options.temperature);
      if (pass == 0) {
        kl += r.kl.sum(at::kDouble);
        overlap += r.overlap.sum(at::kDouble);
        continue;
      }
      const at::Tensor below = r.q.lt(r.p).to(at::kFloat);
      const at::Tensor inside = (r.q * below).sum(-1, true);
      const at::Tensor g = (r.q - r.p) * (w.kl * scale) + r.q * (inside - below) * (w.tv * scale);
      result.grad.index_copy_(0, index, g.to(draft.scalar_type()));
    }
    if (!ce && pass == 0) {
      result.acceptance = overlap.item<double>() / static_cast<double>(count);
      w = weights_of(options, result.acceptance);
    }
  }
  const double mean = kl.item<double>() / static_cast<double>(count);
  result.kl_weight = w.kl;
  result.loss = ce ? mean : (w.kl == 0 ? 0 : w.kl * mean) + (w.tv == 0 ? 0 : w.tv * (1 - result.acceptance));
  if (ce) result.acceptance = kNaN;
  if (std::isnan(mean)) result.loss = kNaN;
  return result;
}

}  // namespace

namespace {

void check(const LossOptions& options, const LossInput& input) {
  const bool ce = options.loss == Loss::kCrossEntropy;
  if (input.draft.dim() != 2 || input.rows.numel() == 0 || (!ce && !input.target.sizes().equals(input.draft.sizes())) ||
      (ce && input.labels.numel() != input.draft.size(0)))
    throw Error(ErrorKind::kInternal, "losses: expected draft and target [T, V], labels [T] and at least one row");
}

}  // namespace

LossResult loss_and_grad(const LossOptions& options, const LossInput& input) {
  if (!input.draft.is_cpu()) return loss_and_grad_aten(options, input);
  check(options, input);
  at::NoGradGuard guard;
  return host_loss(options, input);
}

LossResult loss_and_grad_aten(const LossOptions& options, const LossInput& input) {
  check(options, input);
  at::NoGradGuard guard;
  return device_loss(options, input);
}

}  // namespace specdec::distill
