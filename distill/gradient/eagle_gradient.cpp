#include "distill/gradient/eagle_gradient.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "distill/teacher/head_loss.h"
#include "engine/config/rope.h"
#include "engine/forward/eagle_forward.h"
#include "engine/kernels/ops.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::distill {

namespace {

// Results of the frozen target's forward pass over a batch.
struct TargetPass {
  at::Tensor taps;    // [B, S, A·Ht]: hidden states of the A tapped layers, concatenated; Ht = the target's width
  at::Tensor hidden;  // [R, Ht]: hidden states after the last layer, at Batch::rows
};
TargetPass target_pass(const EagleDraft& draft, const Batch& batch) {
  at::NoGradGuard guard;
  model::TapReader taps(draft.head.config);
  const at::Tensor hidden = draft.divided ? draft.divided->hidden_rows(batch, taps.observer())
                                          : hidden_rows(*draft.target, batch, taps.observer());
  return {taps.rows(), hidden};
}

// Runs the steps of EAGLE-3 training in order (training-time test, see eagle_gradient.h). The input of each step is the
// hidden states that the previous step computed.
class TrainingTest {
 public:
  TrainingTest(const EagleDraft& draft, const at::Tensor& tokens, const at::Tensor& taps)
      : head_(draft.head), tokens_(tokens.to(taps.device())), hidden_(model::fuse_taps(head_, taps)) {}

  // Runs the next step and returns the inputs of lm_head, [B·S, E].
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
  at::Tensor tokens_, hidden_;  // [B, S] token ids; [B, S, E] input hidden states of the next step
  kernels::KeysValues causal_;
  std::vector<kernels::KeysValues> own_;
  int64_t step_ = 0;
};

// The rows at one step (draft position) of the training-time test that are in the loss, as two parallel lists. `learnt`
// has the index of each row's label in Batch::rows. `rows` has the flat index into [B·S] of the position whose output
// predicts this label.
struct StepRows {
  at::Tensor learnt, rows;
};
StepRows step_rows(const Batch& batch, int64_t step) {
  const int64_t width = batch.tokens.size(1), back = step + 1;
  const at::Tensor learnt = at::remainder(batch.rows, width).ge(back).nonzero().squeeze(1);
  return {learnt, batch.rows.index_select(0, learnt) - back};
}

// One step (draft position) of the training-time test over a batch: the rows in the loss, the inputs of lm_head at
// these rows, and the gradient of the loss with respect to these inputs.
struct StepPart {
  StepRows at;
  at::Tensor normed, grad;  // [R, E]

  // Entries [begin, end) of Batch::rows are one chunk of labels. Returns the range of indices into `at.learnt` and
  // `normed` that belongs to this chunk.
  std::pair<int64_t, int64_t> range(int64_t begin, int64_t end) const {
    const int64_t *first = at.learnt.const_data_ptr<int64_t>(), *last = first + at.learnt.numel();
    return {std::lower_bound(first, last, begin) - first, std::lower_bound(first, last, end) - first};
  }
};

// Runs up to `most` steps (draft positions) of the training-time test over a batch; stops at the first step that has no
// row in the loss.
std::vector<StepPart> run_steps(const EagleDraft& draft, const Batch& batch, const at::Tensor& taps, size_t most,
                                const std::function<void()>& pause) {
  TrainingTest test(draft, batch.tokens, taps);
  std::vector<StepPart> out;
  for (size_t i = 0; i < most; ++i) {
    StepPart part{.at = step_rows(batch, static_cast<int64_t>(i)), .normed = {}, .grad = {}};
    if (part.at.rows.numel() == 0) break;  // later steps have no rows either
    part.normed = test.next().index_select(0, part.at.rows.to(taps.device()));
    part.grad = at::empty_like(part.normed.detach());
    out.push_back(std::move(part));
    pause();
  }
  return out;
}

// Computes the losses at all steps (draft positions) of the training-time test over a batch. Adds the losses to
// `figures` and lm_head's gradient to head_grad, and stores the gradients of lm_head's inputs in `steps`. All steps
// need the same rows of target logits, so the outer loop runs over chunks of these rows and computes each chunk once.
// Returns false if a loss is not finite.
bool add_losses(const EagleDraft& draft, const LossOptions& loss, const Batch& batch, const at::Tensor& target_hidden,
                std::vector<StepPart>& steps, at::Tensor& head_grad, std::vector<EagleStepFigures>& figures,
                const std::function<void()>& pause) {
  const std::vector<int32_t>& kept = draft.head.config.layer.draft_vocab;
  HeadLossInput input;
  input.head = draft.head.weights.lm_head.detach();
  input.kept = kept.empty() ? at::Tensor() : model::draft_vocab_index(kept, at::kCPU);
  const int64_t learnt = batch.rows.numel(),
                most = draft.chunk_rows > 0 ? draft.chunk_rows : head_loss_rows(draft.target->config.vocab_size);
  for (int64_t begin = 0; begin < learnt; begin += most) {
    const int64_t end = std::min(learnt, begin + most);
    at::Tensor answers;  // target logits of the chunk, [end - begin, V]
    if (loss.mix.needs_target()) {
      at::NoGradGuard guard;
      answers = model::head_logits(*draft.target, target_hidden.slice(0, begin, end));
    }
    pause();
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto [from, to] = steps[i].range(begin, end);
      if (from == to) continue;
      const at::Tensor labels = steps[i].at.learnt.slice(0, from, to);
      if (answers.defined())
        input.target = [&](int64_t a, int64_t b, const DraftRows&) {
          if (labels.numel() == answers.size(0)) return answers.slice(0, a, b);
          return answers.index_select(0, (labels.slice(0, a, b) - begin).to(answers.device()));
        };
      input.hidden = steps[i].normed.slice(0, from, to);
      input.labels = batch.labels.index_select(0, batch.rows.index_select(0, labels));
      const double share = static_cast<double>(to - from) / static_cast<double>(figures[i].rows);
      input.weight = share * std::pow(draft.ttt_decay, static_cast<double>(i));
      const HeadLoss part = head_loss(loss, input, head_grad, pause);
      figures[i].loss += share * part.loss;
      figures[i].acceptance += share * part.acceptance;
      if (!std::isfinite(part.loss)) return false;
      steps[i].grad.slice(0, from, to).copy_(part.hidden_grad);
    }
  }
  return true;
}

}  // namespace

std::vector<int64_t> count_eagle_rows(const std::vector<Batch>& batches, int64_t steps, const parallel::Ranks& ranks) {
  std::vector<double> rows(static_cast<size_t>(steps));
  for (size_t i = 0; i < rows.size(); ++i)
    for (const Batch& batch : batches)
      rows[i] += static_cast<double>(step_rows(batch, static_cast<int64_t>(i)).rows.numel());
  ranks.sum(std::span(rows));
  return {rows.begin(), rows.end()};
}

EagleFigures add_eagle_gradients(const EagleDraft& draft, LossOptions loss, const std::vector<Batch>& batches,
                                 GradientSums& sums, const std::function<void()>& between,
                                 const std::vector<int64_t>& rows) {
  const std::function<void()> pause = [&] {
    if (between) between();
  };
  loss.acceptance = loss.acceptance.value_or(0);
  at::Tensor& head_grad = sums.of(draft.head.weights.lm_head);
  EagleFigures out;
  for (const int64_t count : rows.empty() ? count_eagle_rows(batches, draft.ttt_steps, parallel::Ranks::alone()) : rows)
    if (count > 0) out.steps.push_back({.rows = count});  // steps without rows in the loss are left out
  for (const Batch& batch : batches) {
    pause();
    const TargetPass target = target_pass(draft, batch);
    pause();
    std::vector<StepPart> steps = run_steps(draft, batch, target.taps, out.steps.size(), pause);
    out.finite = add_losses(draft, loss, batch, target.hidden, steps, head_grad, out.steps, pause);
    if (!out.finite) return out;
    // d sum / d step.normed is step.grad, so sum.backward() backpropagates the gradients of all steps at once.
    at::Tensor sum;
    for (const StepPart& step : steps) {
      const at::Tensor product = (step.normed * step.grad).sum();
      sum = sum.defined() ? sum + product : product;
    }
    pause();
    if (sum.defined()) sum.backward();
    sums.take();
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

void EagleDraft::visit_saved(const std::filesystem::path& directory, const Visit& f) const {
  model::EagleHead saved = model::load_eagle_head(directory, *target, at::kCPU, config().dtype);
  saved.weights.visit(saved.config, f);
}

void EagleDraft::write_as(at::ScalarType dtype, const std::filesystem::path& directory) const {
  model::EagleHead written = head;
  written.weights.visit(written.config, [&](const std::string&, at::Tensor& t) { t = t.detach().to(dtype); });
  written.config.layer.dtype = dtype;
  model::save_eagle_head(written, directory);
}

Json EagleDraft::shape() const {
  return {{"head", "eagle3"},
          {"config", to_json(head.config)},
          {"dtype", model::dtype_flag(config().dtype)},
          {"draft_vocab", config().draft_vocab},
          {"ttt", {{"steps", ttt_steps}, {"decay", ttt_decay}}}};
}

std::unique_ptr<EagleDraft> eagle_like(const Json& shape, const std::shared_ptr<const model::Decoder>& target,
                                       const std::string& where) {
  model::EagleConfig config = model::parse_eagle_config(shape.at("config"), target->config, where);
  config.layer.draft_vocab = shape.at("draft_vocab").get<std::vector<int32_t>>();
  const at::ScalarType dtype = model::resolve_dtype(shape.at("dtype").get<std::string>(), config.layer);
  return std::make_unique<EagleDraft>(model::empty_eagle_head(config, *target, dtype), target,
                                      shape.at("ttt").at("steps").get<int64_t>(),
                                      shape.at("ttt").at("decay").get<double>());
}

std::vector<at::Tensor> EagleDraft::frozen_weights() const {
  if (head.config.layer.hidden_size == head.config.target_hidden_size) return {};
  return {head.weights.embed};
}

GradientFigures EagleDraft::compute_gradients(const LossOptions& loss, const std::vector<Batch>& batches,
                                              GradientSums& sums, const std::function<void()>& between,
                                              const std::vector<int64_t>& rows) const {
  sums.clear();
  const EagleFigures figures = add_eagle_gradients(*this, loss, batches, sums, between, rows);
  sums.publish();
  GradientFigures out;
  out.finite = figures.finite;
  double weight = 1;
  for (const EagleStepFigures& step : figures.steps) out.loss += weight * step.loss, weight *= ttt_decay;
  if (!figures.steps.empty()) out.acceptance = figures.steps.front().acceptance;
  for (const Batch& batch : batches) out.tokens += batch.num_tokens;
  return out;
}

std::vector<int64_t> EagleDraft::count_rows(const std::vector<Batch>& batches, const parallel::Ranks& ranks) const {
  return count_eagle_rows(batches, ttt_steps, ranks);
}

RowLogits EagleDraft::row_logits(const Batch& batch) const { return eagle_row_logits(*this, batch); }

}  // namespace specdec::distill
