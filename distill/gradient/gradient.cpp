#include "distill/gradient/gradient.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "distill/teacher/head_loss.h"
#include "engine/forward/forward.h"
#include "engine/kernels/ops.h"

namespace specdec::distill {

namespace {

// Returns batches that together have about `tokens` tokens, made of the training rows of medium length.
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

// Estimated time of an AdamW update, as a multiple of the time for computing the gradient norm. The update reads and
// writes weights, gradients and two moments; the norm only reads gradients.
constexpr double kUpdateOverNorm = 8;

// The loss, weight and number of rows of one draft position (depth). Depth 1 is the training text itself; depths 2, 3,
// … exist only with roll-outs, texts that the draft itself continued.
struct Depth {
  LossOptions loss;
  double weight = 1;  // multiplies the mean loss of this draft position
  double rows = 0;    // number of rows, the divisor of the mean loss
};
std::vector<Depth> depths_of(const GradientSource& source, double text_rows, double anchors) {
  LossOptions loss = source.loss;
  loss.acceptance = loss.acceptance.value_or(0);
  std::vector<Depth> out = {{loss, 1, text_rows}};
  if (!source.on_policy.applies()) return out;
  std::vector<double> acceptance = {*loss.acceptance};
  acceptance.insert(acceptance.end(), source.deeper.begin(), source.deeper.end());
  acceptance.resize(static_cast<size_t>(source.on_policy.length), 0);
  const std::vector<double> weights = depth_weights(acceptance);
  loss.mix.ce = 0;
  for (size_t j = 0; j < weights.size(); ++j) {
    loss.acceptance = acceptance[j];
    if (j == 0)
      out[0].weight = weights[0];
    else
      out.push_back({loss, weights[j], anchors});
  }
  return out;
}

// Returns the temperature of each row of a batch, [B] fp32.
at::Tensor text_temperatures(const GradientSource& source, const Batch& batch) {
  const auto usual = static_cast<float>(source.loss.temperature);
  if (!source.terms.served_temperatures) return at::full({batch.tokens.size(0)}, usual);
  const at::Tensor& served = batch.temperatures;
  return at::where(served.isnan(), usual, served.clamp_min(kGreedyTemperature));
}

// Returns the weight in the loss of each entry of batch.rows, [R] fp32; undefined if all are 1.
at::Tensor text_weights(const GradientSource& source, const Batch& batch) {
  const RowTerms& terms = source.terms;
  if (!terms.rejects || terms.reject_weight == 1) return {};
  const int64_t width = batch.tokens.size(1), count = batch.rows.numel(), *rows = batch.rows.const_data_ptr<int64_t>();
  at::Tensor out = at::ones({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    const auto& refused = terms.rejects->tokens[batch.row_index[static_cast<size_t>(rows[i] / width)]];
    if (std::binary_search(refused.begin(), refused.end(), static_cast<int32_t>(rows[i] % width + 1)))
      out.mutable_data_ptr<float>()[i] = static_cast<float>(terms.reject_weight);
  }
  return out;
}

// Computes the gradients of one batch. Autograd handles the layers and the final norm. The gradients of output head and
// embedding have one row per token of the vocabulary, so they are summed in place without autograd.
class BatchPass {
 public:
  BatchPass(const GradientSource& source, const Batch& batch, const std::function<void()>& between)
      : source_(source), batch_(batch), between_(between), temperatures_(text_temperatures(source, batch)) {
    const model::Decoder& draft = *source.draft;
    const at::Device device = draft.weights.embed.device();
    const at::Tensor ids = batch.tokens.to(device), rows = batch.rows.to(device);
    if (!source.on_policy.applies()) ask_teacher();
    read_.push_back({ids, kernels::embedding(draft.weights.embed.detach(), ids).requires_grad_(true)});
    const model::TrainBatch texts{.tokens = ids, .embedded = read_[0].rows, .recompute = source.recompute};
    if (!source.on_policy.applies()) {
      take_hidden({model::last_hidden(draft, texts).flatten(0, 1).index_select(0, rows)});
      return;
    }
    model::TrainPass pass(draft, texts);
    DraftedBranches drafted =
        draft_branches(source.on_policy, {*source.rows, batch, source.step, temperatures_}, draft, pass);
    std::vector<at::Tensor> hidden = {pass.hidden().flatten(0, 1).index_select(0, rows)};
    hidden.insert(hidden.end(), drafted.hidden.begin(), drafted.hidden.end());
    for (size_t i = 0; i < drafted.tokens.size(); ++i) read_.push_back({drafted.tokens[i], drafted.embedded[i]});
    if (!drafted.hidden.empty()) {
      branches_ = std::move(drafted.branches);
      batch_.branches = &branches_;
    }
    take_hidden(hidden);
    ask_teacher();
  }
  BatchPass(const BatchPass&) = delete;
  BatchPass& operator=(const BatchPass&) = delete;

  // Adds the batch's gradients to `sums`, and its loss and acceptance to `figures`. Returns false if the loss is not
  // finite.
  bool add(const std::vector<Depth>& depths, GradientSums& sums, GradientFigures& figures) {
    const model::Decoder& draft = *source_.draft;
    HeadLossInput input;
    input.head = model::head_matrix(draft).detach();
    input.soft_cap = draft.config.final_soft_cap;
    input.kept = source_.kept;
    at::Tensor& head_sum = sums.of(draft.weights.lm_head);
    const bool whole = input.head.size(0) == head_sum.size(0);
    at::Tensor head_grad = whole ? head_sum : at::zeros(input.head.sizes(), head_sum.options());
    const at::Tensor hidden_grad = at::empty_like(normed_);
    int64_t begin = 0;
    for (size_t j = 0; j < counts_.size(); begin += counts_[j++]) {
      const int64_t count = counts_[j];
      if (count == 0) continue;
      const Depth& depth = depths[j];
      input.hidden = normed_.narrow(0, begin, count);
      if (target_)
        input.target = [this, begin](int64_t from, int64_t to, const DraftRows& rows) {
          return target_(begin + from, begin + to, rows);
        };
      input.labels = j == 0 ? batch_.labels.index_select(0, batch_.rows) : at::zeros({count}, at::kLong);
      input.weights = j == 0 ? text_weights(source_, batch_) : at::Tensor();
      if (source_.terms.served_temperatures) input.temperatures = temperatures_of(j);
      const double share = static_cast<double>(count) / depth.rows;
      input.weight = depth.weight * share;
      const HeadLoss result = head_loss(depth.loss, input, head_grad, between_);
      figures.loss += input.weight * result.loss;
      if (j == 0) figures.acceptance += share * result.acceptance;
      if (j > 0) figures.deeper[j - 1].acceptance += static_cast<double>(count) * result.acceptance;
      if (j > 0) figures.deeper[j - 1].rows += static_cast<double>(count);
      if (!std::isfinite(result.loss)) return false;
      hidden_grad.narrow(0, begin, count).copy_(result.hidden_grad);
    }
    if (!whole) head_sum.index_add_(0, source_.kept.to(head_sum.device()), head_grad);
    between_();
    normed_.backward(hidden_grad);
    sums.take();
    at::Tensor& embed_sum = sums.of(draft.weights.embed);
    for (const Read& read : read_)
      embed_sum.index_add_(0, read.ids.flatten(), read.rows.grad().flatten(0, 1).to(at::kFloat));
    return true;
  }

 private:
  // The input token ids of a forward pass, and their embeddings `rows` as leaves of autograd.
  struct Read {
    at::Tensor ids, rows;
  };

  void ask_teacher() {
    between_();
    if (source_.teacher) target_ = source_.teacher->rows(batch_);
    between_();
  }

  // Returns the temperatures of the rows at index `depth` (draft position `depth` + 1), [R_depth].
  at::Tensor temperatures_of(size_t depth) const {
    const at::Tensor text = depth == 0
                                ? at::div(batch_.rows, batch_.tokens.size(1), "floor")
                                : at::div(branches_.rows[depth - 1], branches_.tokens.size(1), "floor").to(at::kCPU);
    return temperatures_.index_select(0, text);
  }

  void take_hidden(const std::vector<at::Tensor>& by_depth) {
    for (const at::Tensor& rows : by_depth) counts_.push_back(rows.size(0));
    normed_ = model::final_norm(*source_.draft, by_depth.size() == 1 ? by_depth[0] : at::cat(by_depth));
  }

  const GradientSource& source_;
  Batch batch_;
  const std::function<void()>& between_;
  at::Tensor temperatures_;  // [B]
  TargetRows target_;
  std::vector<Read> read_;
  Branches branches_;
  at::Tensor normed_;            // final-normed hidden states of the rows in the loss, by draft position
  std::vector<int64_t> counts_;  // number of rows of normed_ at each draft position
};

}  // namespace

GradientFigures compute_gradients(const GradientSource& source, const std::vector<Batch>& batches, GradientSums& sums,
                                  const std::function<void()>& between) {
  if (source.head) return source.head->compute_gradients(source.loss, batches, sums, between, source.head_rows);
  const std::function<void()> pause = [&] {
    if (between) between();
  };
  double rows = static_cast<double>(source.learnt), anchors = static_cast<double>(source.anchors);
  for (const Batch& batch : batches) {
    if (source.learnt == 0) rows += static_cast<double>(batch.rows.numel());
    if (source.anchors > 0 || !source.on_policy.applies()) continue;
    for (const size_t row : batch.row_index)
      anchors +=
          static_cast<double>(anchor_count((*source.rows)[row], source.on_policy, source.draft->config.max_position));
  }
  const std::vector<Depth> depths = depths_of(source, rows, std::max(anchors, 1.0));
  sums.clear();
  GradientFigures out;
  out.deeper.resize(depths.size() - 1);
  for (const Batch& batch : batches) {
    pause();
    BatchPass pass(source, batch, pause);
    out.tokens += batch.num_tokens;
    out.finite = pass.add(depths, sums, out);
    if (!out.finite) break;
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
  // Times the batches up to four times and keeps the shortest time, because noise only makes a run longer. The first
  // run also fills the teacher's cache, so its time is used only if no time is left for a second run.
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
