// Matrices of quantised checkpoints. Each weight is stored as a code: an integer of 4 or 8 bits with a scale and a zero
// point, or an E4M3 number with a scale. The inputs of a group share their scale. A GPU multiplies by such a matrix
// without dequantising it first, in the packed layout below. (The int8 matrices of `--dtype int8` have one scale for
// each output, and the layout of kernels/cpu/cpu.h.)
//
// A packed matrix [N, K] is a tensor [N, groups, bytes of a group] of a dtype that says what it holds: int32 for
// kCodes4 (eight codes in a number), int16 for kCodes8, Float8_e4m3fn for kE4m3. It is cut into blocks of 32 outputs,
// of which the last may have fewer, but a multiple of four. A block has one group after the other. A group of inputs
// that share a scale has units of kUnitInputs = 32 inputs, and then a number of 32 bits for each output: the scale in
// fp32, or the scale in fp16 and above it the zero point. Inputs beyond K have zeros.
//
// A unit has 16 bytes for each output and, with 8 bits, as many again after those of all outputs. Those of output
// 4·i + j are the share of lane 4·i + j of a warp, which multiplies inputs 8·j to 8·j + 7 of outputs 4·i to 4·i + 3: a
// number of 32 bits for each of the four. With 4 bits, input t of the eight is at bit 4·(t / 2) + 16·(t mod 2). With 8
// bits, the first number has inputs 0, 2, 1, 3 in its bytes, the second one inputs 4, 6, 5, 7.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/kernels/cuda.h"

namespace specdec::kernels {

// The matrix w[n, k] = scales[g, n] · (value of codes[n, k] − zeros[g, n]) with g = group[k].
struct QuantisedMatrix {
  Packing packing;             // kCodes4, kCodes8 or kE4m3
  at::Tensor codes;            // uint8 [N, K]
  at::Tensor scales;           // fp32 [groups, N]
  at::Tensor zeros;            // uint8 [groups, N]; undefined for kE4m3
  std::vector<int32_t> group;  // [K]

  // Returns outputs [first, first + count).
  QuantisedMatrix outputs(int64_t first, int64_t count) const;
};
// Returns the matrix in fp32 [N, K]; each product is rounded once.
at::Tensor dequantise(const QuantisedMatrix& matrix);

// A packed matrix, and the input in x of each of its inputs (int32 [K]); undefined if they are in their order.
struct PackedCodes {
  at::Tensor matrix, order;
};
// Packs a matrix. Inputs that are not sorted by group are. Returns nothing for a matrix that has no place in the
// layout: one whose outputs are no multiple of four, whose groups have sizes that differ or are no multiple of
// kUnitInputs, or whose scales beside zero points are not numbers of fp16.
std::optional<PackedCodes> pack_codes(const QuantisedMatrix& matrix);
// Returns what dequantise() returns of the matrix before packing.
at::Tensor dequantise(const PackedCodes& packed, int64_t k);

// Returns how a matrix of a product is quantised, from its dtype. kPlain stands for all that are not.
Packing packing_of(const at::Tensor& weight);
// Returns whether a matrix has the packed layout above.
inline bool is_group_quantised(const at::Tensor& weight) {
  return weight.defined() && packing_of(weight) >= Packing::kCodes4;
}
// Returns how many inputs of a packed matrix share a scale; 0 for other matrices.
int64_t group_size_of(const at::Tensor& weight);
// Returns the bytes of an output, or 0 if groups of this size have no place in the layout. `group` 0: all inputs share
// a scale.
int64_t packed_row_bytes(Packing packing, int64_t k, int64_t group);

}  // namespace specdec::kernels
