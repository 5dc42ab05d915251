// The target as a teacher: it computes logits without gradients, and caches them in memory if the logits of the whole
// training set fit.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "distill/batcher.h"
#include "engine/model/weights.h"

namespace specdec::distill {

// A function that computes the logits of entries [begin, end) of Batch::rows: [end - begin, V] in any float dtype, up
// to a constant per row. row_logits returns such a function for `decoder`, which must outlive the function.
using RowLogits = std::function<at::Tensor(int64_t begin, int64_t end)>;
RowLogits row_logits(const model::Decoder& decoder, const Batch& batch);

class Teacher {
 public:
  // `rows` must outlive the teacher; row indices of batches refer to them. If the fp16 log-probabilities at all learnt
  // positions fit in `cache_bytes`, each row is computed once, together with fixed neighbours. The values of a row then
  // do not depend on which batch needs it first, so a resumed run sees the same bits.
  Teacher(std::shared_ptr<const model::Decoder> target, const std::vector<TokenRow>& rows, int64_t cache_bytes);

  const model::Decoder& target() const { return *target_; }
  bool cached() const { return cached_; }
  // Returns the logits at batch.rows, up to a constant per row. The teacher must outlive the result.
  RowLogits rows(const Batch& batch);

 private:
  void fill(size_t group);
  const at::Tensor& answers_of(size_t row);

  std::shared_ptr<const model::Decoder> target_;
  const std::vector<TokenRow>& rows_;
  bool cached_ = false;
  std::vector<std::vector<size_t>> groups_;
  std::vector<size_t> group_of_;
  // kept_[i]: log-probabilities [R, V] fp16 of row i at its learnt positions; undefined until its group is computed.
  std::vector<at::Tensor> kept_;
};

}  // namespace specdec::distill
