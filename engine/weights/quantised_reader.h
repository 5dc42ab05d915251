// Reads matrices of quantised checkpoints. A matrix is either dequantised while loading or stays quantised for products
// on a GPU (kernels/quantised_matrix.h); its values are the same. Activations are not quantised, unlike in FP8 engines.
//
// fp8: <name>.weight is F8_E4M3 [N, K] and is multiplied by <name>.weight_scale_inv or <name>.weight_scale. The scale
// is one number, one per row ([N] or [N, 1]), or one per block ([ceil(N / rows), ceil(K / columns)]). Scales of
// activations and caches (input_scale, k_scale, …) are accepted and ignored.
//
// gptq with b bits: <name>.qweight I32 [K·b/32, N] (32/b inputs per number, lowest bits first), qzeros I32 [groups,
// N·b/32], scales [groups, N], and g_idx I32 [K], the group g of each input. If g_idx is absent, g = k / group size,
// where config.json's group_size must fit the number of rows of scales:
// w[n, k] = scales[g, n] · (q[k, n] − ((qzeros[g, n] + offset) mod 2^b)).
//
// awq: <name>.qweight I32 [K, N/8] (8 outputs per number, from the lowest bits: 0, 2, 4, 6, 1, 3, 5, 7), qzeros I32
// [groups, N/8] in the same order, scales [groups, N]:
// w[n, k] = scales[k / group size, n] · (q − zero).
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <set>
#include <string>

#include "base/safetensors.h"
#include "engine/config/config.h"
#include "engine/kernels/quantised_matrix.h"

namespace specdec::model {

// Returns the matrix `name` ("….weight") if the checkpoint stores it quantised, else nothing. `shape` is the shape that
// config.json requires. Removes the names of the tensors that were read from `unread`. Throws Error(kModel), which
// names file and tensor, for missing parts, wrong shapes, wrong dtypes and numbers that are not finite.
std::optional<kernels::QuantisedMatrix> read_quantised(const SafetensorsDirectory& files,
                                                       const Quantisation& quantisation, const std::string& name,
                                                       at::IntArrayRef shape, std::set<std::string>& unread);

// Throws Error(kModel) if no tensor is quantised although config.json has a quantization_config. For such a checkpoint,
// other engines would miss tensors or fill the matrices with noise.
void require_quantised(const SafetensorsDirectory& files, const Quantisation& quantisation);

// Removes from `unread` the tensors that quantisers write but decoding does not need: for fp8 the scales of activations
// and caches, and for GPTQ the all-zero biases of linear layers that have no bias.
void drop_unneeded(const SafetensorsDirectory& files, const Quantisation& quantisation, std::set<std::string>& unread);

}  // namespace specdec::model
