#include "distill/teacher/label_teacher.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/forward/forward.h"

namespace specdec::distill {

namespace {

// Calls f(labels, begin) for each row of the batch: the labels of the row, and the index of its first entry in
// batch.rows.
template <class F>
void for_each_row(const LabelReader& labels, const std::vector<TokenRow>& rows, const Batch& batch, const F& f) {
  int64_t first = 0;
  for (const size_t i : batch.row_index) {
    const int64_t count = learnt_positions(rows[i]);
    f(labels.read(rows[i].index, count), first);
    first += count;
  }
  if (first != batch.rows.numel()) throw Error(ErrorKind::kInternal, "labels: a batch of other rows");
}

class TopKTeacher final : public Teacher {
 public:
  TopKTeacher(std::shared_ptr<const LabelReader> labels, const std::vector<TokenRow>& rows)
      : labels_(std::move(labels)), rows_(rows) {}

  TargetRows rows(const Batch& batch) override {
    const int64_t count = batch.rows.numel(), k = labels_->index().top_k;
    const TopK all{at::empty({count, k}, at::kLong), at::empty({count, k}, at::kFloat), at::empty({count}, at::kFloat)};
    for_each_row(*labels_, rows_, batch, [&](const RowLabels& row, int64_t first) {
      std::copy(row.ids.begin(), row.ids.end(), all.ids.mutable_data_ptr<int64_t>() + first * k);
      std::copy(row.logprobs.begin(), row.logprobs.end(), all.logprobs.mutable_data_ptr<float>() + first * k);
      std::copy(row.rest.begin(), row.rest.end(), all.rest.mutable_data_ptr<float>() + first);
    });
    const double temperature = labels_->index().temperature;
    const int64_t vocab = labels_->index().vocab_size;
    return [all, temperature, vocab](int64_t begin, int64_t end, const DraftRows& draft) {
      return complete_top_k(
          {all.ids.slice(0, begin, end), all.logprobs.slice(0, begin, end), all.rest.slice(0, begin, end)}, draft,
          temperature, vocab);
    };
  }

  at::Tensor rest(const Batch& batch) override {
    const at::Tensor out = at::empty({batch.rows.numel()}, at::kFloat);
    for_each_row(*labels_, rows_, batch, [&](const RowLabels& row, int64_t first) {
      std::transform(row.rest.begin(), row.rest.end(), out.mutable_data_ptr<float>() + first,
                     [](float x) { return std::exp(x); });
    });
    return out;
  }

 private:
  std::shared_ptr<const LabelReader> labels_;
  const std::vector<TokenRow>& rows_;
};

class HiddenLabelTeacher final : public Teacher {
 public:
  HiddenLabelTeacher(std::shared_ptr<const LabelReader> labels, std::shared_ptr<const model::Decoder> head,
                     const std::vector<TokenRow>& rows)
      : labels_(std::move(labels)), head_(std::move(head)), rows_(rows) {}

  TargetRows rows(const Batch& batch) override {
    const int64_t size = labels_->index().hidden_size;
    const at::Tensor states = at::empty({batch.rows.numel(), size}, at::kBFloat16);
    for_each_row(*labels_, rows_, batch, [&](const RowLabels& row, int64_t first) {
      std::copy(row.hidden.begin(), row.hidden.end(), static_cast<uint16_t*>(states.mutable_data_ptr()) + first * size);
    });
    return [states, head = head_](int64_t begin, int64_t end, const DraftRows&) {
      at::NoGradGuard guard;
      return model::head_logits(*head, states.slice(0, begin, end).to(head->weights.norm.options()));
    };
  }

 private:
  std::shared_ptr<const LabelReader> labels_;
  std::shared_ptr<const model::Decoder> head_;
  const std::vector<TokenRow>& rows_;
};

}  // namespace

at::Tensor complete_top_k(const TopK& labels, const DraftRows& draft, double temperature, int64_t vocab) {
  at::NoGradGuard guard;
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const at::Device device = draft.logits.device();
  const at::Tensor ids = labels.ids.to(device), rest = labels.rest.to(device).unsqueeze(1);
  at::Tensor logits = draft.logits.detach().to(at::kFloat);
  if (draft.kept.defined())
    logits = at::full({logits.size(0), vocab}, kNone, logits.options()).index_copy_(1, draft.kept.to(device), logits);
  at::Tensor others = logits / temperature;
  others.scatter_(1, ids, kNone);
  const at::Tensor sum = others.logsumexp(-1, true);
  // `sum` is −∞ in a row where the draft gives probability 0 to every token without a label.
  others.add_(at::where(sum.isneginf(), at::zeros_like(sum), rest - sum));
  others.scatter_(1, ids, labels.logprobs.to(device));
  return others.mul_(temperature);
}

std::unique_ptr<Teacher> LabelSource::teach(const std::vector<TokenRow>& rows, int64_t) const {
  if (head_) return std::make_unique<HiddenLabelTeacher>(labels_, head_, rows);
  return std::make_unique<TopKTeacher>(labels_, rows);
}

bool LabelSource::has(const TokenRow& row) const {
  return row.index < labels_->index().num_rows && labels_->positions(row.index) >= learnt_positions(row);
}

}  // namespace specdec::distill
