// Reads matrices of quantised checkpoints and dequantises them at once. Products then run as for any other checkpoint,
// without the rounding of activations that FP8 engines add, and use the memory of dequantised weights.
//
// fp8: <name>.weight F8_E4M3 [N, K], times <name>.weight_scale_inv or <name>.weight_scale: one number, [N] or [N, 1],
// or one per block [ceil(N / rows), ceil(K / columns)]. Scales of activations and caches (input_scale, k_scale, …) are
// known and ignored.
//
// gptq: <name>.qweight I32 [K·b/32, N] (32/b inputs per number, lowest bits first), qzeros I32 [groups, N·b/32], scales
// [groups, N], g_idx I32 [K] or absent (k / group size): w[n, k] = scales[g, n] · (q[k, n] − ((qzeros[g, n] + offset)
// mod 2^b)).
//
// awq: <name>.qweight I32 [K, N/8] (8 outputs per number, from the lowest bits: 0, 2, 4, 6, 1, 3, 5, 7), qzeros I32
// [groups, N/8] in the same order, scales [groups, N]: w[n, k] = scales[k / group size, n] · (q − zero).
#pragma once

#include <ATen/ATen.h>

#include <set>
#include <string>

#include "base/safetensors.h"
#include "engine/model/config.h"

namespace specdec::model {

// Returns the matrix `name` ("….weight") as fp32 [N, K] if the checkpoint stores it quantised, else an undefined
// tensor. `shape` is what config.json requires. Removes the names that were read from `unread`. Throws Error(kModel)
// that names file and tensor for missing parts, wrong shapes and wrong dtypes.
at::Tensor read_quantised(const SafetensorsDirectory& files, const Quantisation& quantisation, const std::string& name,
                          at::IntArrayRef shape, std::set<std::string>& unread);

// Removes tensors from `unread` that quantisers write and a dequantised model does not need: scales of activations and
// caches, and GPTQ's biases of linear maps that have none, if they are zero.
void drop_unneeded(const SafetensorsDirectory& files, const Quantisation& quantisation, std::set<std::string>& unread);

}  // namespace specdec::model
