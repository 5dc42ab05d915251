// Rotary angles of a decoder (Su et al. 2021) and their scalings as in transformers' modeling_rope_utils: linear,
// dynamic (NTK), YaRN (Peng et al. 2023), LongRoPE (Ding et al. 2024), llama3.
//
// Two scalings depend on the length of the text: dynamic beyond max_position_embeddings, and longrope beyond the
// original context length. transformers takes the frequencies of a whole pass from its longest position. Here, a
// token's logits are those of a pass over the text up to this token, in which one scaling applies to all tokens. The
// logits do not depend on other tokens that are verified in the same pass.
//
// When the scaling changes, the cached keys and values are invalid. Rotating the keys again would not help: from the
// second layer on they were computed from hidden states of the old scaling. So a cache records its tokens and is
// recomputed when the scaling of its text changes (engine/forward/rescaled_pass.cpp), as transformers' generation does
// for Phi-3. longrope needs this once; dynamic needs it at every token beyond max_position_embeddings, which is exact
// but slow. Teacher-forced passes (TrainBatch) have one scaling, that of their longest position.
#pragma once

#include <ATen/ATen.h>

#include <utility>

#include "engine/config/config.h"

namespace specdec::model {

// Returns a value that identifies the scaling of a text of `length` tokens: equal values mean equal frequencies. It is
// 0 for short texts and for scalings that do not depend on the length.
int64_t rope_rescale(const RopeConfig& rope, int64_t length);
inline bool rope_varies(const RopeConfig& rope) {
  return rope.kind == RopeConfig::Kind::kDynamic || rope.kind == RopeConfig::Kind::kLongRope;
}

// Returns the number of values of a head that are rotated (R below), which is even.
int64_t rotary_dim(const RopeConfig& rope, int64_t head_dim);

// Returns the angle per position of each rotated pair, [R/2] fp32 on the CPU, for texts with this rope_rescale.
// Computed in fp32 with ATen in the same steps as in transformers, because another rounding would change the angle at
// position 8000 by 1e-3.
at::Tensor inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale = 0);

// Returns cos and sin [..., R/2] fp32 of positions [...] int64, times the scaling's attention_factor, on the device of
// `positions`.
std::pair<at::Tensor, at::Tensor> rope_angles(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale,
                                              const at::Tensor& positions);

}  // namespace specdec::model
