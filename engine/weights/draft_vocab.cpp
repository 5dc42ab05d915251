#include "engine/weights/draft_vocab.h"

#include <ATen/ATen.h>

#include <limits>

namespace specdec::model {

at::Tensor draft_vocab_index(const std::vector<int32_t>& draft_vocab, at::Device device) {
  return at::tensor(draft_vocab, at::kInt).to(at::kLong).to(device);
}

at::Tensor spread_logits(const at::Tensor& logits, const at::Tensor& ids, int64_t vocab_size) {
  if (!ids.defined()) return logits;
  std::vector<int64_t> shape = logits.sizes().vec();
  shape.back() = vocab_size;
  const at::Tensor out = at::full(shape, -std::numeric_limits<double>::infinity(), logits.options());
  return out.index_copy_(-1, ids, logits);
}

void write_logits(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& rows) {
  if (!ids.defined()) {
    rows.copy_(logits);
    return;
  }
  const bool whole = logits.size(1) != ids.numel();
  rows.fill_(-std::numeric_limits<float>::infinity());
  rows.index_copy_(1, ids, (whole ? logits.index_select(1, ids) : logits).to(at::kFloat));
}

at::Tensor spread_logits(const at::Tensor& logits, const std::vector<int32_t>& draft_vocab, int64_t vocab_size) {
  const at::Tensor ids = draft_vocab.empty() ? at::Tensor() : draft_vocab_index(draft_vocab, logits.device());
  return spread_logits(logits, ids, vocab_size);
}

}  // namespace specdec::model
