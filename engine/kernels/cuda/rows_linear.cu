// Products of few rows of x with a matrix, for decoding; the time is that of reading the matrix once. In each
// tensor-core instruction the matrix is the 16-row operand and rows of x (up to 64 per block) are the columns of the
// other operand. The split of the sum over k depends on k alone, so a row's result does not depend, bit for bit, on how
// many rows are computed with it. A greedy answer is therefore the same with and without a draft.
#include <ptx.h>

#include "engine/kernels/cuda/device.h"
#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kWarps = 8;     // the warps of a block take turns along k
constexpr int kOutputs = 16;  // outputs of one tensor-core tile; with a second matrix, each matrix has half of them
constexpr int kColumns = 8;   // rows of x in one tile
constexpr int kMost = 64;     // rows of x per block
constexpr int kStep = 32;     // numbers along k that a warp reads at a time: 8 by each of 4 lanes

// Each block computes kGroups tiles of outputs for up to kMost rows of x. With more tiles per block, x is read less
// often; with fewer, there are more blocks. Blocks of the same outputs are neighbours in the grid, so that all but the
// first read the matrix from the L2 cache.
//
// Both operands pass their numbers along k to the tensor cores in the same permuted order: a lane loads eight
// consecutive numbers, which are its share of two instructions. So every load is 16 bytes wide and needs no shared
// memory.
template <class T, int kTiles, int kGroups, bool kVectors, bool kGated>
__global__ void __launch_bounds__(kWarps * 32, 1)
    rows_linear_tiles(const uint16_t* __restrict__ x, const uint16_t* __restrict__ weight, const T* __restrict__ bias,
                      const uint16_t* __restrict__ up, const T* __restrict__ up_bias, const T* residual, int all_rows,
                      int64_t n, int64_t k, int64_t stride, const int32_t* live, T* out) {
  if (live && *live == 0) return;
  using Parts = float[kWarps][kTiles * kColumns][kOutputs];
  constexpr int kOwn = kGated ? kOutputs / 2 : kOutputs;
  Parts& parts = *static_cast<Parts*>(shared_memory());
  const int warp = static_cast<int>(threadIdx.x) / 32, group = static_cast<int>(threadIdx.x) % 32 / 4,
            member = static_cast<int>(threadIdx.x) % 4;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kMost;
  const int rows = min(kMost, all_rows - static_cast<int>(begin));
  x += begin * k;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kGroups * kOwn;
  const auto low_of = [&](int g) { return first + g * kOwn + group; };
  const auto high_of = [&](int g) { return kGated ? low_of(g) : low_of(g) + 8; };
  const uint16_t* upper = kGated ? up : weight;
  float sums[kGroups][kTiles][4] = {};
  // The loop is unrolled so that loads of several steps overlap; the number of registers bounds the factor.
  [[maybe_unused]] constexpr int kUnrolled = !kVectors ? 1 : kGroups * kTiles <= 8 ? 4 : 1;
#pragma unroll kUnrolled
  for (int64_t at = warp * kStep; at < k; at += kWarps * kStep) {
    const int64_t mine = at + 8 * member;
    Eight a[kGroups], b[kGroups];
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      a[g] = load<kVectors>(weight + low_of(g) * k, mine, low_of(g) < n ? k : 0);
      b[g] = load<kVectors>(upper + high_of(g) * k, mine, high_of(g) < n ? k : 0);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = tile * kColumns + group;
      const Eight in = load<kVectors>(x + row * k, mine, row < rows ? k : 0);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        mma_m16n8k16<T>(sums[g][tile], {a[g].pairs[0], b[g].pairs[0], a[g].pairs[1], b[g].pairs[1]},
                        {in.pairs[0], in.pairs[1]});
        mma_m16n8k16<T>(sums[g][tile], {a[g].pairs[2], b[g].pairs[2], a[g].pairs[3], b[g].pairs[3]},
                        {in.pairs[2], in.pairs[3]});
      }
    }
  }
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g > 0) __syncthreads();  // all threads have read `parts` of the previous tile
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        parts[warp][tile * kColumns + 2 * member + i % 2][group + i / 2 * 8] = sums[g][tile][i];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < rows * kOwn; i += kWarps * 32) {
      const int row = i / kOwn, output = i % kOwn;
      const int64_t column = first + g * kOwn + output;
      if (column >= n) continue;
      const auto total = [&](int at, const T* own_bias) {
        float sum = 0;
        for (int w = 0; w < kWarps; ++w) sum += parts[w][row][at];
        if (own_bias) sum += widen(own_bias[column]);
        return narrow<T>(sum);
      };
      T result = total(output, bias);
      if constexpr (kGated) result = silu_times(result, total(output + 8, up_bias));
      if (residual) result = narrow<T>(widen(residual[(begin + row) * n + column]) + widen(result));
      out[(begin + row) * stride + column] = result;
    }
  }
}

template <class T, int kTiles, int kGroups, bool kGated>
int launch_groups(const RowsProduct& p, Stream stream) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  const bool vectors = p.k % 8 == 0 && aligned(p.x) && aligned(p.weight) && aligned(p.up);
  constexpr int kOwn = kGroups * (kGated ? kOutputs / 2 : kOutputs);
  const dim3 blocks(static_cast<unsigned>((p.rows + kMost - 1) / kMost),
                    static_cast<unsigned>((p.n + kOwn - 1) / kOwn));
  return launch(stream, blocks, kWarps * 32, sizeof(float) * kWarps * kTiles * kColumns * kOutputs,
                vectors ? rows_linear_tiles<T, kTiles, kGroups, true, kGated>
                        : rows_linear_tiles<T, kTiles, kGroups, false, kGated>,
                static_cast<const uint16_t*>(p.x), static_cast<const uint16_t*>(p.weight),
                static_cast<const T*>(p.bias), static_cast<const uint16_t*>(p.up), static_cast<const T*>(p.up_bias),
                static_cast<const T*>(p.residual), static_cast<int>(p.rows), p.n, p.k, p.stride, p.live,
                static_cast<T*>(p.out));
}

// Chooses how many tiles of outputs a block computes. Every choice gives the same result bit for bit. A matrix that
// would occupy fewer blocks than a GPU has multiprocessors gets smaller blocks.
template <class T, int kTiles, int kMostGroups, bool kGated>
int launch_tiles(const RowsProduct& p, Stream stream) {
  constexpr int kBlocks = 128, kOwn = kGated ? kOutputs / 2 : kOutputs;
  if constexpr (kMostGroups > 1) {
    if (p.n < int64_t{kBlocks} * kMostGroups * kOwn) return launch_tiles<T, kTiles, kMostGroups / 2, kGated>(p, stream);
  }
  return launch_groups<T, kTiles, kMostGroups, kGated>(p, stream);
}

template <class T, bool kGated>
int launch_rows(const RowsProduct& p, Stream stream) {
  const auto tiles = p.rows <= 8    ? launch_tiles<T, 1, 1, kGated>
                     : p.rows <= 16 ? launch_tiles<T, 2, 2, kGated>
                     : p.rows <= 32 ? launch_tiles<T, 4, 4, kGated>
                                    : launch_tiles<T, 8, 4, kGated>;
  return tiles(p, stream);
}

}  // namespace

int launch_rows_linear(CudaDtype dtype, const RowsProduct& product, Stream stream) {
  if (product.rows == 0 || product.n == 0) return 0;
  if (product.rows > kMaxProductRows) return static_cast<int>(cudaErrorInvalidValue);
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    return product.up ? launch_rows<T, true>(product, stream) : launch_rows<T, false>(product, stream);
  });
}

}  // namespace specdec::kernels::cuda
