// Dequantises matrices that are quantised by group (kernels/quantised_matrix.h) to 16-bit numbers. Products of many
// rows use this, because LibTorch multiplies 16-bit matrices faster than our kernels.
#include "engine/kernels/cuda/quantised_weights.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kWarps = 8;  // warps per block; each handles one unit

// Multiplies the two 16-bit numbers in `pair` by a scale and rounds each product once.
template <class T>
__device__ uint32_t scaled_pair(uint32_t pair, float scale) {
  const auto scaled = [scale](uint32_t number) {
    return bits(narrow<T>(widen(number_of_bits<T>(static_cast<unsigned short>(number))) * scale));
  };
  return scaled(pair & 0xffffu) | scaled(pair >> 16) << 16;
}

template <class T, class Weights>
__global__ void dequantise_units(const uint8_t* __restrict__ weight, int64_t n, int64_t k, int units, bool vectors,
                                 uint16_t* out) {
  const int warp = static_cast<int>(threadIdx.x) / 32, group = static_cast<int>(threadIdx.x) % 32 / 4,
            member = static_cast<int>(threadIdx.x) % 4;
  constexpr int kInputs = Weights::kInputs;
  const int64_t all_units = (k + kInputs - 1) / kInputs, groups = (all_units + units - 1) / units,
                group_bytes = Weights::group_bytes(units), first = static_cast<int64_t>(blockIdx.y) * kBlockOutputs,
                unit = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (unit >= all_units) return;
  const int outputs = static_cast<int>(n - first < kBlockOutputs ? n - first : kBlockOutputs);
  Weights w;
  w.load(
      UnitWalk(weight + first * groups * group_bytes, outputs, units, group_bytes, static_cast<int>(unit), 0).place(),
      group, member);
  if (4 * group >= outputs) return;
  const int64_t at = unit * kInputs + 8 * member;
#pragma unroll
  for (int o = 0; o < 4; ++o) {
    Eight numbers;
#pragma unroll
    for (int i = 0; i < 4; ++i) numbers.pairs[i] = scaled_pair<T>(w.pairs[i][o], w.scales[o]);
    uint16_t* row = out + (first + 4 * group + o) * k;
    if (vectors) {
      if (at < k)
        *reinterpret_cast<uint4*>(row + at) = {numbers.pairs[0], numbers.pairs[1], numbers.pairs[2], numbers.pairs[3]};
      continue;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (at + i < k) row[at + i] = static_cast<uint16_t>(numbers[i]);
  }
}

}  // namespace

int launch_dequantise(CudaDtype dtype, const DequantisedMatrix& matrix, Stream stream) {
  if (matrix.n == 0 || matrix.k == 0) return 0;
  if (!aligned_to_16(matrix.weight) || matrix.n % 4 != 0) return static_cast<int>(cudaErrorInvalidValue);
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    return with_weights<T>(matrix.packing, matrix.group, [&](auto weights, int units) {
      using Weights = decltype(weights);
      if constexpr (Weights::kInputs != kUnitInputs) {
        return static_cast<int>(cudaErrorInvalidValue);
      } else {
        const int64_t all_units = (matrix.k + kUnitInputs - 1) / kUnitInputs;
        const bool vectors = matrix.k % 8 == 0 && aligned_to_16(matrix.out);
        const dim3 blocks(static_cast<unsigned>((all_units + kWarps - 1) / kWarps),
                          static_cast<unsigned>((matrix.n + kBlockOutputs - 1) / kBlockOutputs));
        return launch(stream, blocks, kWarps * 32, 0, dequantise_units<T, Weights>,
                      static_cast<const uint8_t*>(matrix.weight), matrix.n, matrix.k, units, vectors,
                      static_cast<uint16_t*>(matrix.out));
      }
    });
  });
}

}  // namespace specdec::kernels::cuda
