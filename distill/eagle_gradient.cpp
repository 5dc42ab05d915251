#include "distill/eagle_gradient.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

#include "base/error.h"
#include "engine/kernels/ops.h"
#include "engine/model/draft_vocab.h"
#include "engine/model/eagle_forward.h"
#include "engine/model/rope.h"

namespace specdec::distill {

namespace {

// The frozen target's pass over a batch.
struct TargetPass {
  at::Tensor taps;    // [B, S, A·Ht]
  at::Tensor hidden;  // [B·S, Ht], after the last layer
};
TargetPass target_pass(const EagleDraft& draft, const Batch& batch) {
  at::NoGradGuard guard;
  model::TapReader taps(draft.head.config);
  const at::Tensor tokens = batch.tokens.to(draft.target->weights.embed.device());
  const at::Tensor hidden = model::last_hidden(*draft.target, {tokens, {}, {}}, taps.observer());
  return {taps.rows(), hidden.flatten(0, 1)};
}

// Runs the steps one after another, each on the hidden states that the one before fed back.
class TrainingTest {
 public:
  TrainingTest(const EagleDraft& draft, const at::Tensor& tokens, const at::Tensor& taps)
      : head_(draft.head), tokens_(tokens.to(taps.device())), hidden_(model::fuse_taps(head_, taps)) {}

  // Returns the inputs [B·S, H] of lm_head of the next step.
  at::Tensor next() {
    const model::DecoderConfig& config = head_.config.layer;
    const int64_t length = tokens_.size(1), shift = ++step_;
    const at::Tensor tokens = at::constant_pad_nd(tokens_.narrow(1, shift, length - shift), {0, shift}),
                     positions = at::arange(length, tokens_.options()) + (shift - 1);
    const int64_t rescale = model::rope_varies(config.rope) ? model::rope_rescale(config.rope, length) : 0;
    const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      if (step_ == 1)
        causal_ = {k.transpose(1, 2), v.transpose(1, 2)};
      else
        own_.push_back({k, v});
      return kernels::diagonal_attention(q, causal_, own_, config.attention_scale());
    };
    const model::EagleOutput out = model::eagle_forward(head_, {tokens, hidden_, positions, rescale}, attend);
    hidden_ = out.fed_back;
    return out.normed.flatten(0, 1);
  }

 private:
  const model::EagleHead& head_;
  at::Tensor tokens_, hidden_;  // [B, S], [B, S, H]
  kernels::KeysValues causal_;
  std::vector<kernels::KeysValues> own_;
  int64_t step_ = 0;
};

// The rows of one step in a batch. `learnt` holds indices into Batch::rows, and `rows` the rows [B·S] of the head that
// predict those labels.
struct StepRows {
  at::Tensor learnt, rows;
};
StepRows step_rows(const Batch& batch, int64_t step) {
  const int64_t width = batch.tokens.size(1), back = step + 1;
  const at::Tensor learnt = at::remainder(batch.rows, width).ge(back).nonzero().squeeze(1);
  return {learnt, batch.rows.index_select(0, learnt) - back};
}

// One step's share of the gradients: computes them for lm_head and returns those of `normed`, [R, H].
struct StepLoss {
  at::Tensor grad;
  LossResult result;
};
StepLoss step_loss(const EagleDraft& draft, const LossOptions& loss, LossInput input, const at::Tensor& normed) {
  const at::Tensor x = normed.detach().requires_grad_();
  const at::Tensor logits = model::eagle_logits(draft.head, x);
  input.draft = logits.detach();
  StepLoss out;
  out.result = loss_and_grad(loss, input);
  if (std::isfinite(out.result.loss)) logits.backward(out.result.grad);
  out.grad = x.grad();
  return out;
}

}  // namespace

std::vector<int64_t> count_eagle_rows(const std::vector<Batch>& batches, int64_t steps, const Ranks& ranks) {
  std::vector<double> rows(static_cast<size_t>(steps));
  for (size_t i = 0; i < rows.size(); ++i)
    for (const Batch& batch : batches)
      rows[i] += static_cast<double>(step_rows(batch, static_cast<int64_t>(i)).rows.numel());
  ranks.sum(std::span(rows));
  return {rows.begin(), rows.end()};
}

EagleFigures add_eagle_gradients(const EagleDraft& draft, const LossOptions& loss, const std::vector<Batch>& batches,
                                 const std::function<void()>& between, const std::vector<int64_t>& rows) {
  const auto pause = [&] {
    if (between) between();
  };
  const std::vector<int32_t>& kept = draft.head.config.layer.draft_vocab;
  const at::Tensor kept_ids = kept.empty() ? at::Tensor() : model::draft_vocab_index(kept, at::kCPU);
  EagleFigures out;
  for (const int64_t count : rows.empty() ? count_eagle_rows(batches, draft.ttt_steps, Ranks::alone()) : rows)
    if (count > 0) out.steps.push_back({.rows = count});  // the last steps may have no rows
  for (const Batch& batch : batches) {
    pause();
    const TargetPass target = target_pass(draft, batch);
    const at::Device device = target.taps.device();
    at::Tensor answers;  // [R, V]
    if (loss.mix.needs_target()) {
      at::NoGradGuard guard;
      answers = model::head_logits(*draft.target, target.hidden.index_select(0, batch.rows.to(device)));
    }
    pause();
    TrainingTest test(draft, batch.tokens, target.taps);
    at::Tensor sum;
    for (size_t i = 0; i < out.steps.size(); ++i) {
      const StepRows at_step = step_rows(batch, static_cast<int64_t>(i));
      const int64_t count = at_step.rows.numel();
      if (count == 0) break;  // the later steps have no rows in this batch either
      EagleStepFigures& figures = out.steps[i];
      const double share = static_cast<double>(count) / static_cast<double>(figures.rows);
      LossInput input;
      if (answers.defined())
        input.target = count == answers.size(0) ? answers : answers.index_select(0, at_step.learnt.to(device));
      input.labels = batch.labels.index_select(0, batch.rows.index_select(0, at_step.learnt));
      input.rows = at::arange(count, at::kLong);
      input.weight = share * std::pow(draft.ttt_decay, static_cast<double>(i));
      input.kept = kept_ids;
      const at::Tensor normed = test.next().index_select(0, at_step.rows.to(device));
      const StepLoss part = step_loss(draft, loss, input, normed);
      figures.loss += share * part.result.loss;
      figures.acceptance += share * part.result.acceptance;
      if (!std::isfinite(part.result.loss)) {
        out.finite = false;
        return out;
      }
      // The gradient of this sum with respect to `normed` is part.grad.
      const at::Tensor product = (normed * part.grad).sum();
      sum = sum.defined() ? sum + product : product;
      pause();
    }
    if (sum.defined()) sum.backward();
  }
  return out;
}

RowLogits eagle_row_logits(const EagleDraft& draft, const Batch& batch) {
  at::NoGradGuard guard;
  const StepRows at_step = step_rows(batch, 0);
  if (at_step.rows.numel() != batch.rows.numel())
    throw Error(ErrorKind::kInternal, "an EAGLE-3 head cannot predict the second token of a row");
  const TargetPass target = target_pass(draft, batch);
  TrainingTest test(draft, batch.tokens, target.taps);
  const at::Tensor normed = test.next().index_select(0, at_step.rows.to(target.taps.device()));
  return [normed, &draft](int64_t begin, int64_t end) {
    at::NoGradGuard inner;
    const model::DecoderConfig& config = draft.head.config.layer;
    return model::spread_logits(model::eagle_logits(draft.head, normed.slice(0, begin, end)), config.draft_vocab,
                                config.vocab_size);
  };
}

}  // namespace specdec::distill
