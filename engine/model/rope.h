// Rotary angles of a decoder (Su et al. 2021) and their scalings as in transformers' modeling_rope_utils: linear,
// dynamic (NTK), YaRN (Peng et al. 2023), LongRoPE (Ding et al. 2024), llama3.
//
// Two scalings depend on how long the text is: dynamic beyond max_position_embeddings, longrope beyond the length
// before the extension. transformers takes the frequencies of a whole pass from its longest position. So a token's
// logits are here those of a pass over the text up to this token and no further, every earlier token computed under the
// same scaling, whatever it is verified together with. Keys and values cached under another scaling are of no use then
// (turning the keys on would not do: from the second layer on they come from hidden states of the other scaling): a
// cache knows its tokens and is computed anew where a text crosses the border (engine/model/rescaled_pass.cpp), as
// Phi-3's generation in transformers does. Once for longrope; for dynamic at every token beyond the border, which is
// exact and slow. Teacher-forced passes (TrainBatch) have one scaling, that of their longest position.
#pragma once

#include <ATen/ATen.h>

#include <utility>

#include "engine/model/config.h"

namespace specdec::model {

// What distinguishes the scalings of one rope: 0 for short texts and for scalings that do not depend on the length,
// else a value that differs with the frequencies. `length` in tokens.
int64_t rope_rescale(const RopeConfig& rope, int64_t length);
inline bool rope_varies(const RopeConfig& rope) {
  return rope.kind == RopeConfig::Kind::kDynamic || rope.kind == RopeConfig::Kind::kLongRope;
}

int64_t rotary_dim(const RopeConfig& rope, int64_t head_dim);  // R: how many values of a head are turned; even

// [R/2] fp32 on the CPU: the angle of one position step for each pair, for texts with this rope_rescale. Computed in
// fp32 with ATen, step by step as transformers does: at position 8000 another rounding would turn the angle by 1e-3.
at::Tensor inverse_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale = 0);

// cos and sin [..., R/2] fp32 of positions [...] int64, times the scaling's attention_factor, on the device of
// `positions`.
std::pair<at::Tensor, at::Tensor> rope_angles(const RopeConfig& rope, int64_t head_dim, int64_t rope_rescale,
                                              const at::Tensor& positions);

}  // namespace specdec::model
