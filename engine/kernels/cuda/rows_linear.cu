// Products of few rows with a matrix, for decoding: the time is that of reading the matrix once. The matrix takes the
// side of the tensor cores' 16-row operand, and up to 64 rows of x are the columns of the other one. How the sum over k
// is divided depends on k alone, so a row's bits do not depend on how many rows are computed with it, and a greedy
// answer is the same with and without a draft.
#include <ptx.h>

#include "engine/kernels/cuda/device.h"
#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kWarps = 8;     // which take turns along k
constexpr int kOutputs = 16;  // of a block
constexpr int kColumns = 8;   // rows of x in one tile
constexpr int kStep = 32;     // numbers along k that a warp reads at a time: eight in each of four lanes

// A block computes kOutputs outputs of all rows. x [rows, k], weight [n, k], bias [n] or null, out [rows, n].
//
// Both operands give the tensor cores their numbers along k in the same order, but not in ascending order: a lane reads
// eight neighbours, which make up its share of two instructions. So every load has 16 bytes, without shared memory.
template <class T, int kTiles, bool kVectors>
__global__ void __launch_bounds__(kWarps * 32, 1)
    rows_linear_tiles(const uint16_t* __restrict__ x, const uint16_t* __restrict__ weight, const T* __restrict__ bias,
                      int rows, int64_t n, int64_t k, T* __restrict__ out) {
  using Parts = float[kWarps][kTiles * kColumns][kOutputs];
  Parts& parts = *static_cast<Parts*>(shared_memory());
  const int warp = static_cast<int>(threadIdx.x) / 32, group = static_cast<int>(threadIdx.x) % 32 / 4,
            member = static_cast<int>(threadIdx.x) % 4;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kOutputs;
  const int64_t low = first + group, high = low + 8;
  float sums[kTiles][4] = {};
  [[maybe_unused]] constexpr int kUnrolled = kVectors ? 4 : 1;
#pragma unroll kUnrolled
  for (int64_t at = warp * kStep; at < k; at += kWarps * kStep) {
    const int64_t mine = at + 8 * member;
    const Eight a = load<kVectors>(weight + low * k, mine, low < n ? k : 0),
                b = load<kVectors>(weight + high * k, mine, high < n ? k : 0);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = tile * kColumns + group;
      const Eight in = load<kVectors>(x + row * k, mine, row < rows ? k : 0);
      mma_m16n8k16<T>(sums[tile], {a.pairs[0], b.pairs[0], a.pairs[1], b.pairs[1]}, {in.pairs[0], in.pairs[1]});
      mma_m16n8k16<T>(sums[tile], {a.pairs[2], b.pairs[2], a.pairs[3], b.pairs[3]}, {in.pairs[2], in.pairs[3]});
    }
  }
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[warp][tile * kColumns + 2 * member + i % 2][group + i / 2 * 8] = sums[tile][i];
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows * kOutputs; i += kWarps * 32) {
    const int row = i / kOutputs, output = i % kOutputs;
    if (first + output >= n) continue;
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += parts[w][row][output];
    if (bias) total += widen(bias[first + output]);
    out[row * n + first + output] = narrow<T>(total);
  }
}

template <class T, int kTiles>
int launch_tiles(const void* x, const void* weight, const void* bias, int64_t rows, int64_t n, int64_t k, void* out,
                 Stream stream) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const bool vectors = k % 8 == 0 && aligned(x) && aligned(weight);
  return launch(stream, dim3(static_cast<unsigned>((n + kOutputs - 1) / kOutputs)), kWarps * 32,
                sizeof(float) * kWarps * kTiles * kColumns * kOutputs,
                vectors ? rows_linear_tiles<T, kTiles, true> : rows_linear_tiles<T, kTiles, false>,
                static_cast<const uint16_t*>(x), static_cast<const uint16_t*>(weight), static_cast<const T*>(bias),
                static_cast<int>(rows), n, k, static_cast<T*>(out));
}

}  // namespace

int launch_rows_linear(CudaDtype dtype, const void* x, const void* weight, const void* bias, int64_t rows, int64_t n,
                       int64_t k, void* out, Stream stream) {
  if (rows == 0 || n == 0) return 0;
  if (rows > kMaxLinearRows) return static_cast<int>(cudaErrorInvalidValue);
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    const auto tiles = rows <= 8    ? launch_tiles<T, 1>
                       : rows <= 16 ? launch_tiles<T, 2>
                       : rows <= 32 ? launch_tiles<T, 4>
                                    : launch_tiles<T, 8>;
    return tiles(x, weight, bias, rows, n, k, out, stream);
  });
}

}  // namespace specdec::kernels::cuda
