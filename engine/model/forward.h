// The forward pass of every decoder, as free functions over tensors: distill runs it with gradients, decode without.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/model/kv_cache.h"
#include "engine/model/weights.h"

namespace specdec::model {

// Called with the residual stream after `layer` layers ([T, E] or [B, S, E], the weights' dtype); layer 0 is the
// embedding. Used by EAGLE-3 taps.
using HiddenObserver = std::function<void(int64_t layer, const at::Tensor& hidden)>;

// Runs a teacher-forced pass without a cache, differentiable. tokens [B, S] int64, right-padded (the mask is causal, so
// padding never affects earlier positions); positions [B, S] int64 or undefined (0..S-1); segment [B, S] int64 or
// undefined: tokens attend only to equal segments (packed rows). Rope scalings that depend on the length use the
// batch's longest position (rope.h). Returns logits [B, S, V] in the weights' dtype, or [B, S, D] with a reduced
// vocabulary (config.draft_vocab; spread_logits).
struct TrainBatch {
  at::Tensor tokens = {}, positions = {}, segment = {};
};
at::Tensor forward(const Decoder& decoder, const TrainBatch& batch, const HiddenObserver& observer = {});

// The same pass in two parts, for callers that need the logits of some positions, or of a few at a time: with a large
// vocabulary they are most of the pass. last_hidden() returns the residual stream [B, S, E] after the last layer,
// head_logits() the logits [..., V] (or [..., D]) of any of its rows [..., E].
at::Tensor last_hidden(const Decoder& decoder, const TrainBatch& batch, const HiddenObserver& observer = {});
at::Tensor head_logits(const Decoder& decoder, const at::Tensor& hidden);

// Input of an incremental pass over several sequences at once (flat batch). Each part appends its tokens to its cache
// and gets logits for its last `num_logits` tokens. tree_mask: [T, T] bool over the part's own tokens (true = may
// attend); undefined = causal. A sliding window counts the keys that a token may see, so the tokens of a branch have
// the window that they would have alone. positions: explicit, or empty for cache length + 0..T-1. A cache may appear
// only once in a pass.
struct SequencePart {
  KvCache* cache = nullptr;
  std::span<const int32_t> tokens = {};
  int64_t num_logits = 1;
  at::Tensor tree_mask = {};
  std::vector<int64_t> positions = {};
};
// Runs the pass and returns fp32 logits [Σ num_logits, V] on the decoder's device, parts in order; −inf outside
// config.draft_vocab. Commits the caches. Never computes gradients. fp32, bf16 and int8 on a CPU use
// engine/kernels/cpu: a row's logits are bit-identical whatever rows, parts and threads it shares the pass with, and
// whether its context was prefilled token by token or at once. Throws Error(kData) for a token id outside the
// vocabulary, Error(kInternal) for inconsistent parts (no tokens, more logits than tokens, shape of mask or positions).
at::Tensor forward(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer = {});

}  // namespace specdec::model
