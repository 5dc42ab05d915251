// Rotary angles of a decoder (Su et al. 2021; llama3 scaling as in transformers' modeling_rope_utils).
#pragma once

#include <ATen/ATen.h>

#include <utility>

#include "engine/model/config.h"

namespace specdec::model {

// [D/2] fp32 on the CPU: the angle of one position step for each pair. Computed in fp32 with ATen, step by step as
// transformers does: at position 8000 another rounding would turn the angle by 1e-3.
at::Tensor inverse_frequencies(const DecoderConfig& config);

// cos and sin [..., D/2] fp32 of positions [...] int64, on the device of `positions`.
std::pair<at::Tensor, at::Tensor> rope_angles(const at::Tensor& inverse_frequencies, const at::Tensor& positions);

}  // namespace specdec::model
