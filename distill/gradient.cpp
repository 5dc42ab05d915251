#include "distill/gradient.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "distill/head_loss.h"
#include "engine/kernels/ops.h"
#include "engine/model/forward.h"

namespace specdec::distill {

namespace {

// Returns batches of typical rows (of medium length) that hold about `tokens` tokens together.
std::vector<Batch> typical_batch(const std::vector<TokenRow>& rows, int64_t tokens, int64_t vocab) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto groups = group_rows(rows, order, tokens);
  std::vector<Batch> out;
  int64_t taken = 0;
  const BatchShape shape = batch_shape(tokens, vocab);
  for (const auto& part : group_rows(rows, groups[groups.size() / 2], shape.batch_tokens)) {
    if (taken >= tokens) break;
    out.push_back(make_batch(rows, part));
    taken += out.back().num_tokens;
  }
  return out;
}

int64_t tokens_of(const std::vector<Batch>& batches) {
  return std::accumulate(batches.begin(), batches.end(), int64_t{0},
                         [](int64_t sum, const Batch& b) { return sum + b.tokens.numel(); });
}

// The loss of a head is that of all its steps, and its acceptance that of the first drafted position.
GradientFigures eagle_figures(const GradientSource& source, const std::vector<Batch>& batches, GradientSums& sums,
                              const std::function<void()>& between) {
  sums.clear();
  const EagleFigures figures = add_eagle_gradients(*source.eagle, source.loss, batches, between, source.eagle_rows);
  sums.take();
  sums.publish();
  GradientFigures out{.finite = figures.finite};
  double weight = 1;
  for (const EagleStepFigures& step : figures.steps) out.loss += weight * step.loss, weight *= source.eagle->ttt_decay;
  if (!figures.steps.empty()) out.acceptance = figures.steps.front().acceptance;
  for (const Batch& batch : batches) out.tokens += batch.num_tokens;
  return out;
}

// Estimated time of an AdamW update, as a multiple of the time of the gradient norm. The update reads and writes
// weights, gradients and two moments; the norm only reads the gradients.
constexpr double kUpdateOverNorm = 8;

// Adds the gradients of one batch, whose loss has this weight, to `sums`. Autograd carries the gradient through the
// layers and the final norm; the head and the embedding, whose gradients are as large as the vocabulary, are added up
// without it.
HeadLoss batch_gradients(const GradientSource& source, const LossOptions& loss, const Batch& batch, double weight,
                         GradientSums& sums, const std::function<void()>& between) {
  const model::Decoder& draft = *source.draft;
  const at::Device device = draft.weights.embed.device();
  const at::Tensor ids = batch.tokens.to(device), rows = batch.rows.to(device);
  HeadLossInput input;
  if (source.teacher) input.target = source.teacher->rows(batch);
  between();
  const at::Tensor embedded = kernels::embedding(draft.weights.embed.detach(), ids).requires_grad_(true);
  const at::Tensor hidden = model::final_norm(
      draft, model::last_hidden(draft, {.tokens = ids, .embedded = embedded}).flatten(0, 1).index_select(0, rows));
  input.hidden = hidden;
  input.head = model::head_matrix(draft).detach();
  input.soft_cap = draft.config.final_soft_cap;
  input.labels = batch.labels.index_select(0, batch.rows);
  input.kept = source.kept;
  input.weight = weight;
  at::Tensor& head_sum = sums.of(draft.weights.lm_head);
  const bool whole = input.head.size(0) == head_sum.size(0);
  at::Tensor head_grad = whole ? head_sum : at::zeros(input.head.sizes(), head_sum.options());
  const HeadLoss result = head_loss(loss, input, head_grad, between);
  if (!std::isfinite(result.loss)) return result;
  if (!whole) head_sum.index_add_(0, source.kept.to(device), head_grad);
  between();
  hidden.backward(result.hidden_grad);
  sums.take();
  sums.of(draft.weights.embed).index_add_(0, ids.flatten(), embedded.grad().flatten(0, 1).to(at::kFloat));
  return result;
}

}  // namespace

GradientFigures compute_gradients(const GradientSource& source, const std::vector<Batch>& batches, GradientSums& sums,
                                  const std::function<void()>& between) {
  if (source.eagle) return eagle_figures(source, batches, sums, between);
  const auto pause = [&] {
    if (between) between();
  };
  const double own = std::accumulate(batches.begin(), batches.end(), 0.0, [](double sum, const Batch& b) {
    return sum + static_cast<double>(b.rows.numel());
  });
  const double rows = source.learnt > 0 ? static_cast<double>(source.learnt) : own;
  LossOptions loss = source.loss;
  loss.acceptance = loss.acceptance.value_or(0);
  sums.clear();
  GradientFigures out;
  for (const Batch& batch : batches) {
    pause();
    const double weight = static_cast<double>(batch.rows.numel()) / rows;
    const HeadLoss result = batch_gradients(source, loss, batch, weight, sums, pause);
    out.loss += weight * result.loss;
    out.acceptance += weight * result.acceptance;
    out.tokens += batch.num_tokens;
    if (!std::isfinite(result.loss)) {
      out.finite = false;
      break;
    }
  }
  sums.publish();
  return out;
}

StepCost measure_step(const StepInput& input, double seconds, const Clock& clock,
                      const std::function<void()>& between) {
  const auto& [source, parameters, rows, ranks] = input;
  const double begin = clock.seconds();
  const AdamW norms(parameters, {});
  GradientSums sums(parameters);
  // Takes the shortest of a few runs, because disturbances only make a step longer. The first run also fills the
  // teacher's cache, so it counts only if there is no other.
  const auto time_of = [&](const std::vector<Batch>& batches, double until) {
    double least = 0, norm = 0;
    for (int i = 0; i < 4; ++i) {
      if (i > 0 && clock.seconds() - begin > until) break;
      const double start = clock.seconds();
      compute_gradients(source, batches, sums, between);
      const double middle = clock.seconds();
      norms.grad_norm();
      const double step = middle - start, end = clock.seconds() - middle;
      least = i <= 1 ? step : std::min(least, step);
      norm = i <= 1 ? end : std::min(norm, end);
    }
    sums.clear();
    return std::pair(least, norm);
  };
  const int64_t vocab = source.config().vocab_size;
  const std::vector<Batch> small = typical_batch(rows, kLeastStepTokens, vocab),
                           large = typical_batch(rows, 4 * kLeastStepTokens, vocab);
  const auto n = static_cast<double>(tokens_of(small)), m = static_cast<double>(tokens_of(large));
  const auto [short_step, norm] = time_of(small, seconds / 3);
  StepCost cost{kUpdateOverNorm * norm, short_step / n, 0};
  const double left = seconds - (clock.seconds() - begin);
  if (m > 1.5 * n && 2 * short_step * m / n < left) {
    const double slope = (time_of(large, seconds).first - short_step) / (m - n);
    cost.per_token = std::clamp(slope, 0.1 * short_step / n, short_step / n);
    cost.fixed += short_step - cost.per_token * n;
  }
  cost.per_token /= ranks;
  return cost;
}

}  // namespace specdec::distill
