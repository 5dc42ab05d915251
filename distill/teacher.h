// The target as a teacher: logits without gradients, kept in memory where the whole training set fits.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "distill/batcher.h"
#include "engine/model/weights.h"

namespace specdec::distill {

// Logits [B, S, V] of right-padded rows tokens [B, S] int64, without recording gradients.
at::Tensor frozen_logits(const model::Decoder& decoder, const at::Tensor& tokens);

// Logits of the positions of a batch that count, computed as they are asked for: entries [begin, end) of Batch::rows ->
// [end - begin, V] in any float dtype, up to a constant a row.
using RowLogits = std::function<at::Tensor(int64_t begin, int64_t end)>;
RowLogits row_logits(const model::Decoder& decoder, const Batch& batch);

class Teacher {
 public:
  // `rows` (the training set) outlives the teacher. If fp16 log-probabilities at all positions to be learnt fit in
  // `cache_bytes`, each row is computed once, together with fixed neighbours: what a row gets never depends on the
  // batch that asked first, so a resumed run sees the same bits.
  Teacher(std::shared_ptr<const model::Decoder> target, const std::vector<TokenRow>& rows, int64_t cache_bytes);

  const model::Decoder& target() const { return *target_; }
  bool cached() const { return cached_; }
  // [B·S, V] logits for a batch of the training set (any constant may be added to a row); unspecified but at
  // batch.rows.
  at::Tensor logits(const Batch& batch);
  // The same for the positions that count. The teacher must not go first.
  RowLogits rows(const Batch& batch);

 private:
  void fill(size_t group);
  const at::Tensor& answers_of(size_t row);

  std::shared_ptr<const model::Decoder> target_;
  const std::vector<TokenRow>& rows_;
  bool cached_ = false;
  std::vector<std::vector<size_t>> groups_;
  std::vector<size_t> group_of_;
  // per row [R, V] fp16 at the positions that count, undefined until its group was computed
  std::vector<at::Tensor> kept_;
};

}  // namespace specdec::distill
