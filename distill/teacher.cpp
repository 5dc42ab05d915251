#include "distill/teacher.h"

#include <ATen/core/grad_mode.h>

#include <numeric>

#include "engine/model/forward.h"

namespace specdec::distill {

namespace {

constexpr int64_t kGroupTokens = 1024;

}  // namespace

at::Tensor frozen_logits(const model::Decoder& decoder, const at::Tensor& tokens) {
  at::NoGradGuard guard;
  return model::forward(decoder, model::TrainBatch{tokens.to(decoder.weights.embed.device()), {}, {}});
}

Teacher::Teacher(std::shared_ptr<const model::Decoder> target, const std::vector<TokenRow>& rows, int64_t cache_bytes)
    : target_(std::move(target)), rows_(rows) {
  int64_t tokens = 0;
  for (const TokenRow& row : rows) tokens += static_cast<int64_t>(row.tokens.size());
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

void Teacher::fill(size_t group) {
  at::NoGradGuard guard;
  const Batch batch = make_batch(rows_, groups_[group]);
  const at::Tensor log_p = at::log_softmax(frozen_logits(*target_, batch.tokens).to(at::kFloat), -1);
  for (size_t b = 0; b < groups_[group].size(); ++b) {
    const size_t row = groups_[group][b];
    kept_[row] = log_p[static_cast<int64_t>(b)].slice(0, 0, static_cast<int64_t>(rows_[row].tokens.size())).to(at::kHalf);
  }
}

at::Tensor Teacher::logits(const Batch& batch) {
  at::NoGradGuard guard;
  const int64_t vocab = target_->config.vocab_size;
  if (!cached_) return frozen_logits(*target_, batch.tokens).reshape({-1, vocab});
  const int64_t width = batch.tokens.size(1);
  at::Tensor out = at::empty({batch.tokens.size(0) * width, vocab}, target_->weights.embed.options().dtype(at::kFloat));
  for (size_t b = 0; b < batch.row_index.size(); ++b) {
    const size_t row = batch.row_index[b];
    if (!kept_[row].defined()) fill(group_of_[row]);
    const int64_t begin = static_cast<int64_t>(b) * width;
    out.slice(0, begin, begin + kept_[row].size(0)).copy_(kept_[row]);
  }
  return out;
}

}  // namespace specdec::distill
