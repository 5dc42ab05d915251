#include "distill/loss/losses.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "distill/loss/logit_rows.h"
#include "distill/loss/loss_rows.h"

namespace specdec::distill {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Replaces the term lk_hybrid by the terms kl and tv, with weights λ and 1 − λ that depend on `acceptance`.
LossMix resolve(LossMix mix, double eta, double acceptance) {
  const double lambda = std::exp(-eta * acceptance);
  mix.kl += mix.lk_hybrid * lambda;
  mix.tv += mix.lk_hybrid * (1 - lambda);
  mix.lk_hybrid = 0;
  return mix;
}

// Sums over rows; put_figures() divides them by the number of rows.
struct Totals {
  double ce = 0, kl = 0, rkl = 0, jsd = 0, nla = 0, tv = 0, overlap = 0;
  void add(const Totals& t) {
    ce += t.ce, kl += t.kl, rkl += t.rkl, jsd += t.jsd, nla += t.nla, tv += t.tv, overlap += t.overlap;
  }
};

// Writes the means over `count` rows to `result`. `mix` must come from resolve().
void put_figures(const LossMix& mix, const Totals& sums, int64_t count, LossResult& result) {
  const auto n = static_cast<double>(count);
  result.acceptance = mix.needs_target() ? sums.overlap / n : kNaN;
  result.kl_weight = mix.kl;
  // A term with weight 0 is 0 even if its value is infinite (0 · inf would be NaN).
  const auto term = [&](double weight, double value) { return weight == 0 ? 0 : weight * value; };
  result.loss = term(mix.ce, sums.ce / n) + term(mix.kl, sums.kl / n) + term(mix.rkl, sums.rkl / n) +
                term(mix.jsd, sums.jsd / n) + term(mix.tv, sums.tv / n) + term(mix.nla, sums.nla / n);
  if (mix.needs_target() && std::isnan(sums.kl)) result.loss = kNaN;
}

// Returns the smallest number of rows for which at::parallel_for should use another thread (its grain size).
int64_t grain(int64_t vocab) { return std::max<int64_t>(1, 65536 / vocab); }

// The inputs of the loss in host memory, shared by all rows and threads.
struct HostRows {
  LogitRows target, draft;  // [T, target_vocab], [T, vocab]
  const int64_t *labels, *rows;
  const int64_t* kept;  // [vocab]; null if the two vocabularies are the same
  int64_t vocab, target_vocab, count;
  float inverse_temperature;
  const float *temperatures, *weights;  // [T], or null
  bool overwritten;                     // the gradient is written over the draft's logits

  float inverse(int64_t row) const { return temperatures ? 1 / temperatures[row] : inverse_temperature; }
  float weight(int64_t row) const { return weights ? weights[row] : 1; }

  // Returns a row of the draft's logits in fp32; if the gradient overwrites the logits, the row is copied to `copy`
  // first.
  const float* draft_row(int64_t row, float* copy) const {
    const float* own = draft.row(row, copy);
    return overwritten && own != copy ? std::copy_n(own, vocab, copy) - vocab : own;
  }
};

// Buffers of one thread: logits and distributions of both models, and the gradient, for the row being processed.
struct Room {
  std::vector<float> target, draft, kept, p, q, grad;
  explicit Room(const HostRows& in)
      : target(static_cast<size_t>(in.target_vocab)),
        draft(static_cast<size_t>(in.vocab)),
        kept(in.kept ? draft.size() : 0),
        p(draft.size()),
        q(p.size()),
        grad(p.size()) {}
};
struct Compared {
  const float *target, *draft;  // [vocab] logits
  bool counts;                  // true if KL, RKL and JSD include this row
  RowFigures figures;
};
Compared compare(const HostRows& in, int64_t row, Room& room) {
  Compared out{in.target.row(row, room.target.data()), in.draft_row(row, room.draft.data()), true, {}};
  const float inverse = in.inverse(row);
  float mass = 1;
  if (in.kept) {
    const Kept kept = keep_row(out.target, in.target_vocab, inverse, in.kept, in.vocab, room.kept.data());
    out.target = room.kept.data(), out.counts = kept.holds_argmax, mass = kept.mass;
  }
  out.figures = overlap_row(out.target, out.draft, in.vocab, inverse, mass, room.p.data(), room.q.data());
  return out;
}

// Returns the column of a row's label in the draft's logits; -1 if the draft does not have this token.
int64_t label_of(const HostRows& in, int64_t row) {
  if (!in.kept) return in.labels[row];
  const int64_t* at = std::lower_bound(in.kept, in.kept + in.vocab, in.labels[row]);
  return at != in.kept + in.vocab && *at == in.labels[row] ? at - in.kept : -1;
}

double mean_overlap(const HostRows& in) {
  std::vector<double> overlap(static_cast<size_t>(in.count));
  at::parallel_for(0, in.count, grain(in.target_vocab), [&](int64_t begin, int64_t end) {
    Room room(in);
    for (int64_t i = begin; i < end; ++i)
      overlap[static_cast<size_t>(i)] = compare(in, in.rows[i], room).figures.overlap;
  });
  return std::accumulate(overlap.begin(), overlap.end(), 0.0) / static_cast<double>(in.count);
}

struct ScaledMix {
  LossMix mix;
  double scale;  // factor of the gradient of a row of weight 1
};

// Computes the figures of one row against the target and writes its gradient to `grad`.
Totals divergence_row(const HostRows& in, int64_t row, const ScaledMix& scaled, Room& room, float* grad) {
  const LossMix& mix = scaled.mix;
  const float inverse = in.inverse(row), row_weight = in.weight(row);
  const double scale = scaled.scale * row_weight * inverse;
  const auto [target, draft, counts, f] = compare(in, row, room);
  const float *p = room.p.data(), *q = room.q.data();
  // If `counts` is false, KL leaves this row out. The factor 0 * f.kl still propagates a NaN of the row.
  Totals t{.kl = row_weight * (counts ? f.kl : 0 * f.kl),
           .nla = row_weight * -std::log(static_cast<double>(f.overlap)),
           .tv = row_weight * (1 - f.overlap),
           .overlap = f.overlap};
  overlap_grad(p, q, in.vocab, f, static_cast<float>(counts ? mix.kl * scale : 0),
               static_cast<float>((mix.tv + mix.nla / f.overlap) * scale), grad);
  if (counts && (mix.rkl > 0 || mix.jsd > 0)) {
    const DivergenceWeights w{static_cast<float>(mix.rkl * scale), static_cast<float>(mix.jsd * scale),
                              static_cast<float>(mix.beta)};
    const Divergences d = add_divergences(target, draft, p, q, in.vocab, inverse, f, w, grad);
    t.rkl = row_weight * d.rkl, t.jsd = row_weight * d.jsd;
  }
  if (const int64_t label = mix.ce > 0 ? label_of(in, row) : -1; label >= 0) {
    t.ce = row_weight * (f.log_sum_draft - (draft[label] - f.max_draft) * inverse);
    const auto weight = static_cast<float>(mix.ce * scale);
    for (int64_t v = 0; v < in.vocab; ++v) grad[v] += weight * q[v];
    grad[label] -= weight;
  }
  return t;
}

// Computes a row if the loss has no term but ce (cross entropy).
Totals label_row(const HostRows& in, int64_t row, double scale, Room& room, float* grad) {
  const int64_t label = label_of(in, row);
  const float inverse = in.inverse(row), weight = in.weight(row),
              ce = cross_entropy_row(in.draft_row(row, room.draft.data()), in.vocab, std::max<int64_t>(label, 0),
                                     inverse, label < 0 ? 0.0f : static_cast<float>(scale * weight * inverse), grad);
  return {.ce = label < 0 ? 0.0 * ce : weight * ce};
}

LossResult host_loss(const LossOptions& options, const LossInput& in) {
  const LogitRows draft(in.draft), target = in.target.defined() ? LogitRows(in.target) : LogitRows();
  LossResult result;
  result.grad = in.grad.defined() ? in.grad : at::empty(in.draft.sizes(), in.draft.options());
  const RowWriter grad(result.grad);
  const int64_t vocab = draft.width(), count = in.rows.numel();
  const int64_t* rows = in.rows.const_data_ptr<int64_t>();
  for (int64_t i = 0, t = 0; t < draft.count(); ++t) {
    if (i < count && rows[i] == t)
      ++i;
    else
      grad.zero(t);
  }
  const HostRows host{target,
                      draft,
                      in.labels.defined() ? in.labels.const_data_ptr<int64_t>() : nullptr,
                      rows,
                      in.kept.defined() ? in.kept.const_data_ptr<int64_t>() : nullptr,
                      vocab,
                      in.target.defined() ? target.width() : vocab,
                      count,
                      static_cast<float>(1 / options.temperature),
                      in.temperatures.defined() ? in.temperatures.const_data_ptr<float>() : nullptr,
                      in.weights.defined() ? in.weights.const_data_ptr<float>() : nullptr,
                      in.grad.defined() && in.grad.is_alias_of(in.draft)};
  const bool looks_first = options.mix.lk_hybrid > 0 && !options.acceptance;
  const LossMix mix =
      resolve(options.mix, options.eta, looks_first ? mean_overlap(host) : options.acceptance.value_or(0));
  // `scale` = weight of the call / number of rows. Each row multiplies it by the row's own weight and by 1 / T, the
  // derivative of logit / T.
  const double scale = in.weight / static_cast<double>(count);
  std::vector<Totals> figures(static_cast<size_t>(count));
  at::parallel_for(0, count, grain(host.target_vocab), [&](int64_t begin, int64_t end) {
    Room room(host);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = rows[i];
      float* g = grad.begin(t, room.grad.data());
      figures[static_cast<size_t>(i)] = mix.needs_target() ? divergence_row(host, t, {mix, scale}, room, g)
                                                           : label_row(host, t, mix.ce * scale, room, g);
      grad.put(t, g);
    }
  });
  Totals sums;
  for (const Totals& f : figures) sums.add(f);
  put_figures(mix, sums, count, result);
  return result;
}

// Computes log softmax with the probability floor of loss_rows.h. A NaN or +inf logit makes the row NaN.
at::Tensor floored_log_softmax(const at::Tensor& logits, const at::Tensor& temperature) {
  const at::Tensor wide = logits.to(at::kFloat);
  const at::Tensor x = ((wide - std::get<0>(wide.max(-1, true))) / temperature).clamp_min(-87.0);
  return x - x.exp().sum(-1, true).log();
}

// A block of R rows on any device. log_p (target) and log_q (draft) are [R, vocab]; log_p is renormalised over the
// draft's vocabulary. label [R, 1] is the column of each row's label.
struct DeviceRows {
  at::Tensor log_p, log_q, label;
  // [R, 1] each. `mass` is the target's probability of the draft's vocabulary. `counts` is 1 if KL, RKL and JSD include
  // the row, else 0. `labelled` is 1 if the draft's vocabulary has the label, else 0.
  at::Tensor mass, counts, labelled;
  at::Tensor temperature, weight;  // [R, 1]
};

DeviceRows device_rows(const LossOptions& options, const LossInput& in, const at::Tensor& kept,
                       const at::Tensor& index) {
  DeviceRows out;
  const auto of_rows = [&](const at::Tensor& given, double usual) {
    const auto type = at::TensorOptions(index.device()).dtype(at::kFloat);
    return given.defined() ? given.to(index.device()).index_select(0, index).unsqueeze(1)
                           : at::full({index.size(0), 1}, usual, type);
  };
  out.temperature = of_rows(in.temperatures, options.temperature), out.weight = of_rows(in.weights, 1);
  out.log_q = floored_log_softmax(in.draft.detach().index_select(0, index), out.temperature);
  out.mass = out.counts = out.labelled = at::ones({index.size(0), 1}, out.log_q.options());
  if (options.mix.ce > 0) out.label = in.labels.to(index.device()).index_select(0, index).unsqueeze(1);
  if (options.mix.ce > 0 && kept.defined()) {
    const at::Tensor column = at::searchsorted(kept, out.label).clamp_max(kept.numel() - 1);
    out.labelled = kept.index_select(0, column.flatten()).view_as(column).eq(out.label).to(at::kFloat);
    out.label = column;
  }
  if (!options.mix.needs_target()) return out;
  const at::Tensor target = in.target.detach().index_select(0, index);
  out.log_p = floored_log_softmax(target, out.temperature);
  if (kept.defined()) {
    const at::Tensor own = target.index_select(1, kept);
    out.mass = out.log_p.index_select(1, kept).exp().sum(-1, true).clamp_min(1e-30);
    out.counts = std::get<0>(own.max(-1, true)).eq(std::get<0>(target.max(-1, true))).to(at::kFloat);
    out.log_p = floored_log_softmax(own, out.temperature);
  }
  return out;
}

// Adds the sums over the block's rows to `figures`, [7] fp64 in the order of the fields of Totals. Returns the gradient
// [R, V] in fp32. If `gradient` is false and there is a target, returns an undefined tensor.
at::Tensor device_block(const LossMix& mix, const DeviceRows& in, at::Tensor figures, bool gradient) {
  const at::Tensor &log_p = in.log_p, &log_q = in.log_q, q = log_q.exp();
  const auto count = [&](int64_t index, const at::Tensor& rows) {  // [R, 1] or [R, V]
    figures[index] += (rows * in.weight).sum(at::kDouble);
  };
  at::Tensor grad = at::zeros_like(q);
  if (mix.ce > 0) {
    count(0, -log_q.gather(1, in.label) * in.labelled);
    grad += mix.ce * q * in.labelled;
    grad.scatter_add_(1, in.label, -mix.ce * in.labelled);
  }
  if (!log_p.defined()) return grad;
  const at::Tensor p = log_p.exp(), whole = in.mass * p, overlap = at::minimum(whole, q).sum(-1, true);
  count(1, p * (log_p - log_q) * in.counts);
  count(4, -overlap.log());
  count(5, 1 - overlap);
  figures[6] += overlap.sum(at::kDouble);
  if (!gradient) return {};
  const at::Tensor below = q.lt(whole).to(at::kFloat), inside = (q * below).sum(-1, true);
  grad += mix.kl * (q - p) * in.counts + (mix.tv + mix.nla / overlap) * q * (inside - below);
  const auto centred = [&](const at::Tensor& slope) { return in.counts * q * (slope - (q * slope).sum(-1, true)); };
  if (mix.rkl > 0) {
    count(2, in.counts * q * (log_q - log_p));
    grad += mix.rkl * centred(log_q - log_p);
  }
  if (mix.jsd > 0) {
    const at::Tensor log_m = (mix.beta * p + (1 - mix.beta) * q).clamp_min(1.17549435e-38).log();
    count(3, in.counts * (mix.beta * p * (log_p - log_m) + (1 - mix.beta) * q * (log_q - log_m)));
    grad += mix.jsd * (1 - mix.beta) * centred(log_q - log_m);
  }
  return grad;
}

// Processes blocks of rows, because the fp32 copies of all rows of a large vocabulary would need too much memory.
LossResult device_loss(const LossOptions& options, const LossInput& in) {
  const at::Tensor draft = in.draft.detach(), rows = in.rows.to(draft.device()),
                   kept = in.kept.defined() ? in.kept.to(draft.device()) : at::Tensor();
  const int64_t count = rows.numel(), vocab = in.target.defined() ? in.target.size(1) : draft.size(1);
  const int64_t block = std::max<int64_t>(1, (int64_t{1} << 26) / vocab);
  const double scale = in.weight / static_cast<double>(count);
  LossResult result;
  result.grad = in.grad.defined() ? in.grad : at::empty_like(draft);
  LossMix mix = options.acceptance ? resolve(options.mix, options.eta, *options.acceptance) : options.mix;
  at::Tensor figures;
  for (const bool gradient : {false, true}) {
    if (!gradient && mix.lk_hybrid == 0) continue;
    figures = at::zeros({7}, draft.options().dtype(at::kDouble));
    for (int64_t begin = 0; begin < count; begin += block) {
      const at::Tensor index = rows.slice(0, begin, std::min(count, begin + block));
      const DeviceRows block_rows = device_rows(options, in, kept, index);
      const at::Tensor grad = device_block(mix, block_rows, figures, gradient);
      if (!gradient) continue;
      const at::Tensor factor = scale * block_rows.weight / block_rows.temperature;
      result.grad.index_copy_(0, index, (grad * factor).to(draft.scalar_type()));
    }
    if (!gradient) mix = resolve(mix, options.eta, figures[6].item<double>() / static_cast<double>(count));
  }
  if (count < draft.size(0)) {
    const at::Tensor other = at::ones({draft.size(0)}, draft.options().dtype(at::kBool)).index_fill_(0, rows, 0);
    result.grad.masked_fill_(other.unsqueeze(1), 0);
  }
  const at::Tensor host = figures.to(at::kCPU);
  const double* f = host.const_data_ptr<double>();
  put_figures(mix, {f[0], f[1], f[2], f[3], f[4], f[5], f[6]}, count, result);
  return result;
}

void check(const LossOptions& options, const LossInput& in) {
  const bool rows = in.draft.dim() == 2 && in.rows.numel() > 0, reduced = in.kept.defined();
  const bool labels = options.mix.ce <= 0 || (in.labels.defined() && in.labels.numel() == in.draft.size(0));
  bool target = !options.mix.needs_target();
  if (!target && in.target.defined() && in.target.dim() == 2)
    target = in.target.size(0) == in.draft.size(0) &&
             (reduced ? in.target.size(1) >= in.draft.size(1) : in.target.size(1) == in.draft.size(1));
  const auto per_row = [&](const at::Tensor& t) {
    return !t.defined() ||
           (t.is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous() && t.numel() == in.draft.size(0));
  };
  if (!rows || !labels || !target || !per_row(in.temperatures) || !per_row(in.weights) ||
      (reduced && (in.kept.numel() != in.draft.size(1) ||
                   (in.target.defined() && in.kept[-1].item<int64_t>() >= in.target.size(1)))))
    throw Error(ErrorKind::kInternal,
                "losses: expected draft and target [T, V] or draft [T, D] with D kept ids, labels [T], temperatures "
                "and weights "
                "[T] in fp32, and at least one row");
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
