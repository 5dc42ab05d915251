#include "distill/gradient.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
GradientFigures eagle_figures(const GradientSource& source, const std::vector<Batch>& batches,
                              const std::function<void()>& between) {
  const EagleFigures figures = add_eagle_gradients(*source.eagle, source.loss, batches, between);
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

}  // namespace

GradientFigures add_gradients(const GradientSource& source, const std::vector<Batch>& batches,
                              const std::function<void()>& between) {
  if (source.eagle) return eagle_figures(source, batches, between);
  const auto pause = [&] {
    if (between) between();
  };
  const double rows = std::accumulate(batches.begin(), batches.end(), 0.0, [](double sum, const Batch& b) {
    return sum + static_cast<double>(b.rows.numel());
  });
  GradientFigures out;
  for (const Batch& batch : batches) {
    pause();
    LossInput input;
    if (source.teacher) input.target = source.teacher->logits(batch);
    pause();
    const at::Tensor logits =
        model::forward(*source.draft, model::TrainBatch{batch.tokens.to(source.draft->weights.embed.device()), {}, {}});
    pause();
    input.draft = logits.detach().reshape({-1, logits.size(-1)});
    input.labels = batch.labels;
    input.rows = batch.rows;
    input.kept = source.kept;
    input.weight = static_cast<double>(batch.rows.numel()) / rows;
    const LossResult result = loss_and_grad(source.loss, input);
    input.target = at::Tensor();
    pause();
    out.loss += input.weight * result.loss;
    out.acceptance += input.weight * result.acceptance;
    out.tokens += batch.num_tokens;
    if (!std::isfinite(result.loss)) {
      out.finite = false;
      break;
    }
    logits.backward(result.grad.view_as(logits));
  }
  return out;
}

StepCost measure_step(const StepInput& input, double seconds, const Clock& clock,
                      const std::function<void()>& between) {
  const auto& [source, parameters, rows] = input;
  const double begin = clock.seconds();
  const AdamW norms(parameters, {});
  const auto forget = [&] {
    for (const NamedTensor& p : parameters) p.tensor.mutable_grad() = at::Tensor();
  };
  // Takes the shortest of a few runs, because disturbances only make a step longer. The first run also fills the
  // teacher's cache, so it counts only if there is no other.
  const auto time_of = [&](const std::vector<Batch>& batches, double until) {
    double least = 0, norm = 0;
    for (int i = 0; i < 4; ++i) {
      if (i > 0 && clock.seconds() - begin > until) break;
      const double start = clock.seconds();
      add_gradients(source, batches, between);
      const double middle = clock.seconds();
      norms.grad_norm();
      const double step = middle - start, end = clock.seconds() - middle;
      least = i <= 1 ? step : std::min(least, step);
      norm = i <= 1 ? end : std::min(norm, end);
      forget();
    }
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
  return cost;
}

}  // namespace specdec::distill
