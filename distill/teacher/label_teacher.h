// A teacher that reads the target's probabilities or hidden states from labels on disk (base/schema/label_index.h).
//
// Top-k labels give the probabilities of the k likeliest tokens, the set K, and r, the total probability of all other
// tokens. The other tokens are treated as one bucket: a loss compares p on K and r with the draft's q on K and Q =
// Σ_{v∉K} q(v). Merging tokens can only make an f-divergence smaller (data processing inequality). So KL, reverse KL,
// JSD and TV with the bucket are lower bounds of the true ones. The acceptance Σ_{v∈K} min(p, q) + min(r, Q) is an
// upper bound, at most min(r, Q) ≤ r too high. All bounds are exact if the draft's q is proportional to p outside K.
//
// The losses need no special case for the bucket. complete_top_k() spreads r over the other tokens in proportion to the
// draft's probabilities, p(v) = r q(v) / Q. With this p, every divergence over the whole vocabulary equals the
// divergence with the bucket, and so does its gradient with p held fixed. Of all p that agree with the labels, it has
// the least divergence from q.
#pragma once

#include <memory>

#include "distill/labels/label_files.h"
#include "distill/teacher/teacher.h"

namespace specdec::distill {

// Top-k labels of n positions.
struct TopK {
  at::Tensor ids;       // [n, K] int64
  at::Tensor logprobs;  // [n, K] fp32
  at::Tensor rest;      // [n] fp32: log of the total probability of all other tokens
};
// Returns the target's logits at `temperature`, [n, vocab] fp32, up to a constant per row. Logits of tokens outside the
// top k are computed from the draft's logits. If the draft gives all tokens outside the top k of a row probability 0,
// these tokens get probability 0, and their total r is ignored.
at::Tensor complete_top_k(const TopK& labels, const DraftRows& draft, double temperature, int64_t vocab);

class LabelSource final : public TeacherSource {
 public:
  // `head` has the target's final norm and output head if the labels are of kind "hidden", else it is null.
  // TokenRow::index is the row's index in the labels.
  LabelSource(std::shared_ptr<const LabelReader> labels, std::shared_ptr<const model::Decoder> head)
      : labels_(std::move(labels)), head_(std::move(head)) {}
  std::unique_ptr<Teacher> teach(const std::vector<TokenRow>& rows, int64_t cache_bytes) const override;
  bool has(const TokenRow& row) const override;

 private:
  std::shared_ptr<const LabelReader> labels_;
  std::shared_ptr<const model::Decoder> head_;
};

}  // namespace specdec::distill
