// The forward pass of every decoder, as free functions over tensors: distill runs it with gradients, decode without.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/cache/kv_cache.h"
#include "engine/weights/weights.h"

namespace specdec::model {

// Receives the residual stream after the first `layer` layers, [T, E] or [B, S, E] in the weights' dtype; layer 0 is
// the embedding. For example, EAGLE-3 heads get their hidden states from an observer.
using HiddenObserver = std::function<void(int64_t layer, const at::Tensor& hidden)>;
// Returns whether an observer of these layers (empty: all layers) is called for `layer`.
bool is_observed(const std::vector<int64_t>& layers, int64_t layer);

// forward() of a TrainBatch runs a differentiable teacher-forced pass without a cache. tokens [B, S] int64 are
// right-padded; the mask is causal, so padding never affects earlier positions. positions are [B, S] int64, or
// undefined for 0..S-1. segment is [B, S] int64 or undefined: tokens attend only to tokens of the same segment (packed
// rows). `embedded` are the rows of the embedding table for `tokens`, [B, S, E]: set `embedded` to get gradients with
// respect to these rows, otherwise the pass looks them up. Rope scalings that depend on the length use the batch's
// longest position (rope.h). With `recompute`, the backward pass recomputes the activations of each layer instead of
// storing them; the gradients are the same, and `decoder` must outlive the backward pass. Returns logits [B, S, V] in
// the weights' dtype, or [B, S, D] with a reduced vocabulary of D ids (config.draft_vocab; spread_logits()).
struct TrainBatch {
  at::Tensor tokens = {}, positions = {}, segment = {}, embedded = {};
  bool recompute = false;
};
at::Tensor forward(const Decoder& decoder, const TrainBatch& batch, const HiddenObserver& observer = {});

// last_hidden() and head_logits() run the same pass in two parts, for callers that need the logits of only some
// positions, or of a few positions at a time. With a large vocabulary the logits are most of the cost of a pass.
// last_hidden() returns the residual stream [B, S, E] after the last layer. head_logits() returns the logits [..., V]
// (or [..., D]) of any of its rows [..., E].
at::Tensor last_hidden(const Decoder& decoder, const TrainBatch& batch, const HiddenObserver& observer = {});

// A differentiable pass over texts, and over later tokens that continue the texts from any of their positions, as
// drafted tokens do. The later tokens attend to the texts' keys and values, and gradients flow back into these keys and
// values. Texts and later tokens have the rope scaling of the texts' longest position.
class TrainPass {
 public:
  // Runs the texts. `decoder` must outlive the pass.
  TrainPass(const Decoder& decoder, const TrainBatch& texts);
  const at::Tensor& hidden() const { return hidden_; }  // hidden states of the texts after the last layer, [B, S, E]
  // Runs N more tokens per text: tokens and positions are [B, N] int64. `allowed` is bool [B, N, L + N], where L is the
  // number of tokens of the pass so far, texts first. It tells whether each new token sees each of the L tokens and of
  // the N new ones. `embedded` is as in TrainBatch. Returns the new tokens' hidden states [B, N, E] after the last
  // layer.
  at::Tensor extend(const TrainBatch& tokens, const at::Tensor& allowed);

 private:
  struct KeysValues {
    at::Tensor k, v;  // [B, L, G, D]
  };
  const Decoder& decoder_;
  int64_t longest_ = 0;  // length of the longest text, for the rope scaling
  std::vector<KeysValues> layers_;
  at::Tensor hidden_;
};
at::Tensor head_logits(const Decoder& decoder, const at::Tensor& hidden);
// Returns the rows [..., E] of the embedding table for these ids if the table's rows are divided among ranks. All ranks
// must pass the same ids.
at::Tensor shared_embedding(const Decoder& decoder, const at::Tensor& ids);

// The steps of head_logits(), for callers that compute the gradient of lm_head themselves: final_norm() normalises the
// hidden states, and normed_logits() multiplies the result by head_matrix()ᵀ and applies config.final_soft_cap.
// head_matrix() returns [V, E], or [D, E] with only the rows of config.draft_vocab.
at::Tensor final_norm(const Decoder& decoder, const at::Tensor& hidden);
at::Tensor normed_logits(const Decoder& decoder, const at::Tensor& normed);
at::Tensor head_matrix(const Decoder& decoder);

// One sequence's part of a pass over new tokens of several sequences (flat batch). The pass appends the part's T tokens
// to its cache and returns logits for the last `num_logits` of them. tree_mask: bool [T, T] over the part's own tokens
// (true = may attend); undefined = causal. positions: explicit, or empty for cache length + 0..T-1. A sliding window
// counts only the keys that a token may see, so each branch of a tree has the same window as it would have alone. A
// cache may appear only once in a pass.
struct SequencePart {
  KvCache* cache = nullptr;
  std::span<const int32_t> tokens = {};
  int64_t num_logits = 1;
  at::Tensor tree_mask = {};
  std::vector<int64_t> positions = {};
};
// Returns the mask [1, T, L] of a part: each token sees all keys cached before this pass, and the keys of this pass
// that the tree mask allows. Returns an undefined tensor if there is no tree mask.
at::Tensor allowed_keys(const SequencePart& part, at::Device device);
// Runs the pass, commits its tokens to the caches and returns fp32 logits [Σ num_logits, V] on the decoder's device, in
// the order of the parts, with −inf outside config.draft_vocab. If `layers` is not empty, the observer is called only
// for these layers, and no copies of the other layers' states are made. Never computes gradients. On a CPU, fp32, bf16
// and int8 use engine/kernels/cpu. Each row's logits are then bit-identical, whatever other rows, parts and threads
// take part in the pass, and whether the row's context was prefilled token by token or at once. Throws Error(kData) for
// a token id outside the vocabulary, Error(kInternal) for inconsistent parts (no tokens, more logits than tokens, wrong
// shape of mask or positions).
at::Tensor forward(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer = {},
                   const std::vector<int64_t>& layers = {});

}  // namespace specdec::model
