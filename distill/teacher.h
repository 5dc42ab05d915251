// The target as a teacher: logits without gradients, cached in memory if those of the whole training set fit.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "distill/batcher.h"
#include "engine/model/weights.h"

namespace specdec::distill {

// Returns the logits [B, S, V] of right-padded rows tokens [B, S] int64, without recording gradients.
at::Tensor frozen_logits(const model::Decoder& decoder, const at::Tensor& tokens);

// Returns the logits of entries [begin, end) of Batch::rows, computed on request: [end - begin, V] in any float dtype,
// up to a constant per row.
using RowLogits = std::function<at::Tensor(int64_t begin, int64_t end)>;
RowLogits row_logits(const model::Decoder& decoder, const Batch& batch);

class Teacher {
 public:
  // `rows` (the training set) must outlive the teacher. If fp16 log-probabilities at all learnt positions fit in
  // `cache_bytes`, each row is computed once, together with fixed neighbours. Its values then never depend on the batch
  // that needed it first, so a resumed run sees the same bits.
  Teacher(std::shared_ptr<const model::Decoder> target, const std::vector<TokenRow>& rows, int64_t cache_bytes);

  const model::Decoder& target() const { return *target_; }
  bool cached() const { return cached_; }
  // Returns [B·S, V] logits for a batch of the training set, up to a constant per row; only the values at batch.rows
  // are specified.
  at::Tensor logits(const Batch& batch);
  // Returns the logits at batch.rows only. The teacher must outlive the result.
  RowLogits rows(const Batch& batch);

 private:
  void fill(size_t group);
  const at::Tensor& answers_of(size_t row);

  std::shared_ptr<const model::Decoder> target_;
  const std::vector<TokenRow>& rows_;
  bool cached_ = false;
  std::vector<std::vector<size_t>> groups_;
  std::vector<size_t> group_of_;
  // Cached log-probabilities per row, [R, V] fp16 at the learnt positions; undefined until its group was computed.
  std::vector<at::Tensor> kept_;
};

}  // namespace specdec::distill
