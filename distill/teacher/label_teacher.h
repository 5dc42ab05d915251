// The target's answers from labels on disk (base/schema/label_index.h).
//
// Top-k labels give the probabilities of the k likeliest tokens, the set K, and r, the probability of all others
// together. The others are one bucket: a loss compares p on K and r with the draft's q on K and Q = Σ_{v∉K} q(v).
// Merging tokens maps both distributions to coarser ones, so by the data processing inequality every f-divergence can
// only become smaller: KL, reverse KL, JSD and TV over the bucket are lower bounds of the true ones, and the acceptance
// Σ_{v∈K} min(p, q) + min(r, Q) is an upper bound, which is at most min(r, Q) ≤ r too high. All bounds are exact if the
// draft's q is proportional to p outside K.
//
// The bucket needs no losses of its own. Spreading r over the other tokens as the draft does, p(v) = r q(v) / Q, makes
// every divergence of the whole vocabulary equal to the bucket's, and, with p held fixed, its gradient too: this p is
// the one of least divergence among those that the labels allow. complete_top_k() computes it.
#pragma once

#include <memory>

#include "distill/labels/label_files.h"
#include "distill/teacher/teacher.h"

namespace specdec::distill {

// Top-k labels of n positions.
struct TopK {
  at::Tensor ids;       // [n, K] int64
  at::Tensor logprobs;  // [n, K] fp32
  at::Tensor rest;      // [n] fp32: log r
};
// Returns the target's logits at `temperature`, [n, vocab] fp32, up to a constant per row, completed by the draft's.
// Where the draft gives no probability to any token outside K, the rest is left out.
at::Tensor complete_top_k(const TopK& labels, const DraftRows& draft, double temperature, int64_t vocab);

class LabelSource final : public TeacherSource {
 public:
  // `head` has the target's norm and head for labels of kind "hidden", else it is null. The rows are answered by their
  // TokenRow::index.
  LabelSource(std::shared_ptr<const LabelReader> labels, std::shared_ptr<const model::Decoder> head)
      : labels_(std::move(labels)), head_(std::move(head)) {}
  std::unique_ptr<Teacher> teach(const std::vector<TokenRow>& rows, int64_t cache_bytes) const override;
  bool has(const TokenRow& row) const override;

 private:
  std::shared_ptr<const LabelReader> labels_;
  std::shared_ptr<const model::Decoder> head_;
};

}  // namespace specdec::distill
