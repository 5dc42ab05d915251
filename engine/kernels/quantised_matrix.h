// Weight matrices of quantised checkpoints. Each weight is stored as a code: an integer of 4 or 8 bits with a scale and
// a zero point, or an E4M3 number with a scale. The inputs of a group share their scale. A GPU multiplies by such a
// matrix without dequantising it first, in the packed layout below. (The int8 matrices of `--dtype int8` have one scale
// per output and group, in the layout of kernels/cpu/cpu.h.)
//
// A packed matrix [N, K] is a tensor [N, groups, bytes of a group] whose dtype tells the packing: int32 for kCodes4
// (eight codes per number), int16 for kCodes8, Float8_e4m3fn for kE4m3. The matrix is cut into blocks of 32 outputs;
// the last block may have fewer, but a multiple of four. A block stores its groups one after the other. A group stores
// units of kUnitInputs = 32 inputs each, followed by one 32-bit word per output: the scale in fp32, or the scale in
// fp16 (low half) and the zero point (high half). Inputs beyond K have the code 0.
//
// A unit stores 16 bytes per output, for 8-bit packings followed by another 16 bytes per output. The bytes of output
// 4·i + j belong to lane 4·i + j of a warp, which multiplies inputs 8·j to 8·j + 7 of the four outputs 4·i to 4·i + 3.
// These bytes are one 32-bit number for each of the four outputs. With 4 bits, input t of the eight is at bit 4·(t / 2)
// + 16·(t mod 2). With 8 bits, the bytes of the first number are inputs 0, 2, 1, 3, and those of the second are inputs
// 4, 6, 5, 7.
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
  std::vector<int32_t> group;  // [K], the group of each input

  // Returns outputs [first, first + count).
  QuantisedMatrix outputs(int64_t first, int64_t count) const;
};
// Returns the matrix in fp32 [N, K]; each product is rounded once.
at::Tensor dequantise(const QuantisedMatrix& matrix);

// A packed matrix. `order` (int32 [K]) holds, for each input of the packed matrix, its index in x; undefined if the
// inputs keep their order.
struct PackedCodes {
  at::Tensor matrix, order;
};
// Packs a matrix; sorts its inputs by group if they are not sorted. Returns nothing if the layout cannot represent the
// matrix: its number of outputs is not a multiple of four, its group sizes differ or are not a multiple of kUnitInputs,
// or its scales with zero points are not exact in fp16.
std::optional<PackedCodes> pack_codes(const QuantisedMatrix& matrix);
// Returns the same values as dequantise() of the matrix before packing.
at::Tensor dequantise(const PackedCodes& packed, int64_t k);

// Returns the packing of a product's matrix, given by its dtype. kPlain means that the matrix is not quantised.
Packing packing_of(const at::Tensor& weight);
// Returns whether a matrix has the packed layout above.
inline bool is_group_quantised(const at::Tensor& weight) {
  return weight.defined() && packing_of(weight) >= Packing::kCodes4;
}
// Returns how many inputs of a packed matrix share a scale, or 0 if the matrix is not packed.
int64_t group_size_of(const at::Tensor& weight);
// Returns the bytes per output, or 0 if the layout cannot represent groups of this size. `group` 0 means that all
// inputs share a scale.
int64_t packed_row_bytes(Packing packing, int64_t k, int64_t group);

}  // namespace specdec::kernels
