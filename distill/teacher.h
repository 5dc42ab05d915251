// The target as a teacher: logits without gradients, kept in memory where the whole training set fits.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "distill/batcher.h"
#include "engine/model/weights.h"

namespace specdec::distill {

// Logits [B, S, V] of right-padded rows tokens [B, S] int64, without recording gradients.
at::Tensor frozen_logits(const model::Decoder& decoder, const at::Tensor& tokens);

class Teacher {
 public:
  // `rows` (the training set) outlives the teacher. If fp16 log-probabilities of all its tokens fit in `cache_bytes`, each row is
  // computed once, together with fixed neighbours: what a row gets never depends on the batch that asked first, so a resumed
  // run sees the same bits.
  Teacher(std::shared_ptr<const model::Decoder> target, const std::vector<TokenRow>& rows, int64_t cache_bytes);

  const model::Decoder& target() const { return *target_; }
  bool cached() const { return cached_; }
  // [B·S, V] logits for a batch of the training set (any constant may be added to a row); positions after a row's end are
  // unspecified.
  at::Tensor logits(const Batch& batch);

 private:
  void fill(size_t group);

  std::shared_ptr<const model::Decoder> target_;
  const std::vector<TokenRow>& rows_;
  bool cached_ = false;
  std::vector<std::vector<size_t>> groups_;
  std::vector<size_t> group_of_;
  std::vector<at::Tensor> kept_;  // per row [S, V] fp16, undefined until its group was computed
};

}  // namespace specdec::distill
