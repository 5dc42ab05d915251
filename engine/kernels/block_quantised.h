// Block-quantised matrices of GGUF files as tensors, for products on a CPU: [n, supers, bytes of a super] of dtype
// Bits8, in the layout of kernels/cpu/block_matrix.h. The bytes of a super tell the kind. The memory of the last block
// is padded to kPackOutputs outputs, so such a tensor must not be copied like others.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <string_view>
#include <vector>

#include "engine/kernels/cpu/cpu.h"

namespace specdec::kernels {

// Returns the kind with ggml's name, such as "Q4_0", or nothing.
std::optional<cpu::BlockKind> block_kind(std::string_view name);
inline bool is_block_quantised(const at::Tensor& weight) {
  return weight.defined() && weight.scalar_type() == at::ScalarType::Bits8;
}
cpu::BlockKind block_kind_of(const at::Tensor& weight);
// Returns the shape of the memory for a matrix [n, k], with the padding.
std::vector<int64_t> block_shape(cpu::BlockKind kind, int64_t n, int64_t k);
// Packs a matrix [n, k] whose file's rows lie in `rows`; output i is row order[i] of them (empty: row i). `memory` has
// block_shape(). Returns the matrix, or an undefined tensor if a scale is not finite.
at::Tensor pack_blocks(cpu::BlockKind kind, const uint8_t* rows, const std::vector<int64_t>& order, int64_t n,
                       int64_t k, const at::Tensor& memory);
// Returns x · weightᵀ + bias, [..., n] in x's dtype, for x [..., k]. The products are those of decoding: of the file's
// integers with inputs of 14 bits (cpu::SplitInputs), summed in fp32.
at::Tensor block_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
// Returns the matrix in fp32 [n, k].
at::Tensor dequantise_blocks(const at::Tensor& weight, int64_t k);

}  // namespace specdec::kernels
