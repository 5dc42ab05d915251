#include "distill/teacher/teacher.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>

#include "distill/teacher/branches.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::distill {

namespace {

constexpr int64_t kGroupTokens = 1024, kBlockValues = int64_t{1} << 23;

}  // namespace

at::Tensor hidden_rows(const model::Decoder& decoder, const Batch& batch, const model::HiddenObserver& observer) {
  at::NoGradGuard guard;
  if (batch.branches) return branched_hidden(decoder, batch, *batch.branches);
  const at::Device device = decoder.weights.norm.device();
  return model::last_hidden(decoder, {.tokens = batch.tokens.to(device)}, observer)
      .flatten(0, 1)
      .index_select(0, batch.rows.to(device));
}

RowLogits row_logits(const model::Decoder& decoder, const Batch& batch, DividedTarget* divided, ServedTarget* served) {
  const at::Tensor hidden = divided                     ? divided->hidden_rows(batch)
                            : served && !batch.branches ? served->hidden_rows(batch)
                                                        : hidden_rows(decoder, batch);
  return [hidden, &decoder](int64_t begin, int64_t end) {
    at::NoGradGuard inner;
    return model::spread_logits(model::head_logits(decoder, hidden.slice(0, begin, end)), decoder.config.draft_vocab,
                                decoder.config.vocab_size);
  };
}

ModelTeacher::ModelTeacher(std::shared_ptr<const model::Decoder> target, const std::vector<TokenRow>& rows,
                           int64_t cache_bytes, std::shared_ptr<DividedTarget> divided,
                           std::shared_ptr<ServedTarget> served)
    : target_(std::move(target)), divided_(std::move(divided)), served_(std::move(served)), rows_(rows) {
  int64_t tokens = 0;
  for (const TokenRow& row : rows) tokens += learnt_positions(row);
  const double bytes = 2.0 * static_cast<double>(tokens) * static_cast<double>(target_->config.vocab_size);
  cached_ = bytes <= static_cast<double>(cache_bytes);
  if (!cached_) return;
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  groups_ = group_rows(rows, order, kGroupTokens);
  group_of_.resize(rows.size());
  for (size_t g = 0; g < groups_.size(); ++g)
    for (const size_t row : groups_[g]) group_of_[row] = g;
  kept_.resize(rows.size());
}

void ModelTeacher::fill(size_t group) {
  at::NoGradGuard guard;
  const std::vector<size_t>& members = groups_[group];
  const Batch batch = make_batch(rows_, members);
  const RowLogits logits = row_logits(*target_, batch, divided_.get(), served_.get());
  const int64_t width = batch.tokens.size(1), count = batch.rows.numel(), vocab = target_->config.vocab_size,
                *position = batch.rows.const_data_ptr<int64_t>();
  const auto options = target_->weights.norm.options().dtype(at::kHalf);
  std::vector<int64_t> learnt(members.size(), 0);
  for (int64_t i = 0; i < count; ++i) ++learnt[static_cast<size_t>(position[i] / width)];
  const at::Tensor all = at::empty({count, vocab}, options);
  const int64_t block = std::max<int64_t>(1, kBlockValues / vocab);
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t end = std::min(count, begin + block);
    all.slice(0, begin, end).copy_(at::log_softmax(logits(begin, end).to(at::kFloat), -1));
  }
  for (size_t b = 0, begin = 0; b < members.size(); begin += static_cast<size_t>(learnt[b++]))
    kept_[members[b]] = all.slice(0, static_cast<int64_t>(begin), static_cast<int64_t>(begin) + learnt[b]).clone();
}

const at::Tensor& ModelTeacher::answers_of(size_t row) {
  if (!kept_[row].defined()) fill(group_of_[row]);
  return kept_[row];
}

TargetRows ModelTeacher::rows(const Batch& batch) {
  if (!cached_ || batch.branches)
    return [logits = row_logits(*target_, batch, divided_.get(), served_.get())](
               int64_t begin, int64_t end, const DraftRows&) { return logits(begin, end); };
  std::vector<at::Tensor> parts;
  for (const size_t row : batch.row_index) parts.push_back(answers_of(row));
  const at::Tensor all = parts.size() == 1 ? parts.front() : at::cat(parts);
  return [all](int64_t begin, int64_t end, const DraftRows&) { return all.slice(0, begin, end); };
}

}  // namespace specdec::distill
