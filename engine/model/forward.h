// The one decoder forward pass: free functions over tensors, with gradients in distill, without in decode.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/model/kv_cache.h"
#include "engine/model/weights.h"

namespace specdec::model {

// Called with the residual stream after `layer` layers ([T, E] or [B, S, E], the weights' dtype); 0 is the embedding.
// EAGLE-3 taps use it.
using HiddenObserver = std::function<void(int64_t layer, const at::Tensor& hidden)>;

// Teacher-forced pass without a cache, differentiable. tokens [B, S] int64, right-padded (causal: padding never reaches
// earlier positions); positions [B, S] int64 or undefined (0..S-1); segment [B, S] int64 or undefined: tokens attend
// only to equal segments (packed rows). Scalings that depend on the length take the batch's longest position (rope.h).
// Returns logits [B, S, V] in the weights' dtype, of a reduced vocabulary [B, S, D] (config.draft_vocab;
// spread_logits).
struct TrainBatch {
  at::Tensor tokens = {}, positions = {}, segment = {};
};
at::Tensor forward(const Decoder& decoder, const TrainBatch& batch, const HiddenObserver& observer = {});

// The same pass in two parts, for those who want the logits of some positions, or of a few at a time: of a large
// vocabulary they are most of the pass. The residual stream [B, S, E] after the last layer, and the logits [..., V] (or
// [..., D]) of any of its rows [..., E].
at::Tensor last_hidden(const Decoder& decoder, const TrainBatch& batch, const HiddenObserver& observer = {});
at::Tensor head_logits(const Decoder& decoder, const at::Tensor& hidden);

// Incremental pass over several sequences at once (flat batch). Each part appends its tokens to its cache and gets
// logits for its last `num_logits` tokens. tree_mask: [T, T] bool over the part's own tokens (true = may attend),
// undefined = causal; A sliding window counts the keys that a token may see, so the tokens of a branch have the window
// they would have alone. positions: explicit, or empty for cache length + 0..T-1. A cache may appear once in a pass.
struct SequencePart {
  KvCache* cache = nullptr;
  std::span<const int32_t> tokens = {};
  int64_t num_logits = 1;
  at::Tensor tree_mask = {};
  std::vector<int64_t> positions = {};
};
// Returns fp32 logits [Σ num_logits, V] on the decoder's device, parts in order; -inf outside of config.draft_vocab.
// Caches are committed. Never with gradients. fp32, bf16 and int8 on a CPU run on engine/kernels/cpu: the logits of a
// row are the same bits whatever rows, parts and threads it shares the pass with, and whether its context came token by
// token or at once. Throws Error(kData) for a token id outside the vocabulary, Error(kInternal) for inconsistent parts
// (no tokens, more logits than tokens, shape of mask or positions).
at::Tensor forward(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer = {});

}  // namespace specdec::model
