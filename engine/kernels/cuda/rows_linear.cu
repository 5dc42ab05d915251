// Products of few rows with a matrix, for decoding: the time is that of reading the matrix once. The matrix takes the
// side of the tensor cores' 16-row operand, and up to 64 rows of x are the columns of the other one. How the sum over k
// is divided depends on k alone, so a row's bits do not depend on how many rows are computed with it, and a greedy
// answer is the same with and without a draft.
#include <ptx.h>

#include "engine/kernels/cuda/device.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/warp_ring.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kWarps = kProductWarps;  // which take turns along k
constexpr int kOutputs = 16;           // of a tile of the tensor cores; with a second matrix, half of them are its own
constexpr int kColumns = 8;            // rows of x in one tile
constexpr int kMost = 64;              // rows of a block
constexpr int kMostInputs = 1 << 22;   // so that a number's place in x has 32 bits
constexpr int kStep = 32;              // numbers along k that a warp reads at a time: eight in each of four lanes

// Blocks that share a multiprocessor: as many as the registers for the sums leave.
template <int kTiles, bool kVectors>
constexpr int kBlocksAtOnce = !kVectors     ? 1
                              : kTiles <= 2 ? 3
                                            : 2;

// What a product ends with (RowsProduct).
template <class T>
struct Results {
  const T *bias, *up_bias, *residual;
  int64_t n, stride;
  T* out;
};

// Adds the warps' sums, in their order, and writes the results.
template <class T, int kTiles, int kGroups, bool kGated>
__device__ void end_tiles(const float (&sums)[kGroups][kTiles][4], const Results<T>& results, int64_t begin, int rows,
                          int64_t first) {
  constexpr int kOwn = kGated ? kOutputs / 2 : kOutputs;
  using Parts = float[kWarps][kTiles * kColumns][kOutputs];
  static_assert(sizeof(Parts) <= kRingBytes);
  Parts& parts = *static_cast<Parts*>(shared_memory());
  const int warp = static_cast<int>(threadIdx.x) / 32, group = static_cast<int>(threadIdx.x) % 32 / 4,
            member = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (g > 0) __syncthreads();  // all have read the parts of the tile before
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        parts[warp][tile * kColumns + 2 * member + i % 2][group + i / 2 * 8] = sums[g][tile][i];
    __syncthreads();
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < rows * kOwn; i += kWarps * 32) {
      const int row = i / kOwn, output = i % kOwn;
      const int64_t column = first + g * kOwn + output;
      if (column >= results.n) continue;
      const auto total = [&](int at, const T* bias) {
        float sum = 0;
        for (int w = 0; w < kWarps; ++w) sum += parts[w][row][at];
        if (bias) sum += widen(bias[column]);
        return narrow<T>(sum);
      };
      T result = total(output, results.bias);
      if constexpr (kGated) result = silu_times(result, total(output + 8, results.up_bias));
      if (!kGated && results.residual)
        result = narrow<T>(widen(results.residual[(begin + row) * results.n + column]) + widen(result));
      results.out[(begin + row) * results.stride + column] = result;
    }
  }
}

// The weights of one step for a lane: of output `group` of each tile, and of output `group` + 8.
template <int kGroups>
struct StepWeights {
  uint4 low[kGroups][32], high[kGroups][32];
};

__device__ Eight eight_of(const uint4& all) { return {{all.x, all.y, all.z, all.w}}; }

// Makes the first operands of a step's two instructions.
__device__ void join_rows(uint32_t (&a)[2][4], const Eight& low, const Eight& high) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    a[half][0] = low.pairs[2 * half], a[half][1] = high.pairs[2 * half];
    a[half][2] = low.pairs[2 * half + 1], a[half][3] = high.pairs[2 * half + 1];
  }
}

// A block computes kGroups tiles of outputs of up to kMost rows. More tiles read x less often; fewer make more blocks.
// Blocks of the same outputs are neighbours in the grid, so that the second-level cache serves all but the first of
// them.
//
// Both operands give the tensor cores their numbers along k in the same order, but not in ascending order: a lane reads
// eight neighbours, which make up its share of two instructions. So every load has 16 bytes, and a lane reads only
// those weights that it has copied to shared memory itself.
template <class T, int kTiles, int kGroups, bool kVectors, bool kGated>
__global__ void __launch_bounds__(kWarps * 32, kBlocksAtOnce<kTiles, kVectors>)
    rows_linear_tiles(const uint16_t* x, const uint16_t* __restrict__ weight, const T* __restrict__ bias,
                      const uint16_t* __restrict__ up, const T* __restrict__ up_bias, const T* residual, int all_rows,
                      int64_t n, int k, int64_t stride, const int32_t* live, T* out) {
  let_next_kernel_start();
  constexpr int kOwn = kGated ? kOutputs / 2 : kOutputs;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4,
            member = lane % 4;
  const int begin = static_cast<int>(blockIdx.x) * kMost;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kGroups * kOwn;
  // A lane's weights are those of output `group` of each tile, and of output `group` + 8 or of the second matrix.
  // Outputs beyond the last one are computed as that one is, and left out at the end.
  const auto row_of = [&](const uint16_t* matrix, int64_t output) {
    return matrix + (output < n ? output : n - 1) * k + warp * kStep + 8 * member;
  };
  const uint16_t *low[kGroups], *high[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int64_t output = first + g * kOwn + group;
    low[g] = row_of(weight, output), high[g] = kGated ? row_of(up, output) : row_of(weight, output + 8);
  }
  float sums[kGroups][kTiles][4] = {};
  // Rows of x beyond the last one are read as that one is. The compiler keeps what a shuffle returns in a register.
  const int row = __shfl_sync(0xffffffffu, begin + group, lane);
  constexpr int kSome = kTiles == 1 ? 1 : 2;  // tiles of x that are loaded together
  const auto load_some = [&](int tile, int at, Eight(&in)[kSome]) {
#pragma unroll
    for (int i = 0; i < kSome; ++i)
      in[i] =
          load<kVectors>(x + static_cast<uint32_t>(min(row + (tile + i) * kColumns, all_rows - 1) * k + at), 0, k - at);
  };
  const auto add_step = [&](int at, const auto& operands_of) {
    Eight in[kSome];
    load_some(0, at, in);
    uint32_t a[kGroups][2][4];
    operands_of(a);
#pragma unroll
    for (int tile = 0; tile < kTiles; tile += kSome) {
      if (tile > 0) load_some(tile, at, in);
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int g = 0; g < kGroups; ++g)
#pragma unroll
          for (int i = 0; i < kSome; ++i)
            mma_m16n8k16<T>(sums[g][tile + i], a[g][half], {in[i].pairs[2 * half], in[i].pairs[2 * half + 1]});
    }
  };
  const auto at_rest = [&] { return live && *live == 0; };
  int at = warp * kStep + 8 * member;
  if constexpr (kVectors) {
    WarpRing<sizeof(StepWeights<kGroups>)> ring;
    int left = k - at;  // of the lane's numbers, from the next that is copied on
    const auto copy = [&](uint8_t* stage) {
      auto& step = *reinterpret_cast<StepWeights<kGroups>*>(stage);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        begin_copy(&step.low[g][lane], low[g], left > 0);
        begin_copy(&step.high[g][lane], high[g], left > 0);
        low[g] += kWarps * kStep, high[g] += kWarps * kStep;
      }
      left -= kWarps * kStep;
    };
    ring.start(copy);
    wait_for_previous_kernel();
    if (at_rest()) return ring.finish();
#pragma unroll 1
    for (; at - 8 * member < k; at += kWarps * kStep)
      add_step(at, [&](uint32_t (&a)[kGroups][2][4]) {
        const auto& step = *reinterpret_cast<const StepWeights<kGroups>*>(ring.template next<false>(copy));
#pragma unroll
        for (int g = 0; g < kGroups; ++g) join_rows(a[g], eight_of(step.low[g][lane]), eight_of(step.high[g][lane]));
      });
    ring.finish();
    __syncthreads();  // all have read their weights, and the memory is free for the parts
  } else {
    wait_for_previous_kernel();
    if (at_rest()) return;
    for (; at - 8 * member < k; at += kWarps * kStep)
      add_step(at, [&](uint32_t (&a)[kGroups][2][4]) {
        for (int g = 0; g < kGroups; ++g) {
          join_rows(a[g], load<false>(low[g], 0, k - at), load<false>(high[g], 0, k - at));
          low[g] += kWarps * kStep, high[g] += kWarps * kStep;
        }
      });
  }
  end_tiles<T, kTiles, kGroups, kGated>(sums, {bias, up_bias, residual, n, stride, out}, begin,
                                        min(kMost, all_rows - begin), first);
}

template <class T, int kTiles, int kGroups, bool kGated>
int launch_groups(const RowsProduct& p, Stream stream) {
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
  const bool vectors = p.k % 8 == 0 && aligned(p.x) && aligned(p.weight) && aligned(p.up);
  constexpr int kOwn = kGroups * (kGated ? kOutputs / 2 : kOutputs);
  const dim3 blocks(static_cast<unsigned>((p.rows + kMost - 1) / kMost),
                    static_cast<unsigned>((p.n + kOwn - 1) / kOwn));
  return launch_early(stream, !p.new_weights, blocks, kWarps * 32, kRingBytes,
                      vectors ? rows_linear_tiles<T, kTiles, kGroups, true, kGated>
                              : rows_linear_tiles<T, kTiles, kGroups, false, kGated>,
                      static_cast<const uint16_t*>(p.x), static_cast<const uint16_t*>(p.weight),
                      static_cast<const T*>(p.bias), static_cast<const uint16_t*>(p.up),
                      static_cast<const T*>(p.up_bias), static_cast<const T*>(p.residual), static_cast<int>(p.rows),
                      p.n, static_cast<int>(p.k), p.stride, p.live, static_cast<T*>(p.out));
}

// Chooses how many tiles of outputs a block has. Every choice gives the same bits. A matrix whose blocks would be fewer
// than two for each of a GPU's multiprocessors gets the smaller blocks, or fewer than one where much of the time goes
// to reading x.
template <class T, int kTiles, int kMostGroups, bool kGated>
int launch_tiles(const RowsProduct& p, Stream stream) {
  constexpr int kBlocks = kTiles <= 2 ? 256 : 128, kOwn = kGated ? kOutputs / 2 : kOutputs;
  if constexpr (kMostGroups > 1) {
    if (p.n < int64_t{kBlocks} * kMostGroups * kOwn) return launch_tiles<T, kTiles, kMostGroups / 2, kGated>(p, stream);
  }
  return launch_groups<T, kTiles, kMostGroups, kGated>(p, stream);
}

template <class T, bool kGated>
int launch_rows(const RowsProduct& p, Stream stream) {
  const auto tiles = p.rows <= 8    ? launch_tiles<T, 1, 1, kGated>
                     : p.rows <= 16 ? launch_tiles<T, 2, 2, kGated>
                     : p.rows <= 32 ? launch_tiles<T, 4, 2, kGated>
                                    : launch_tiles<T, 8, 2, kGated>;
  return tiles(p, stream);
}

}  // namespace

int launch_rows_linear(CudaDtype dtype, const RowsProduct& product, Stream stream) {
  if (product.rows == 0 || product.n == 0) return 0;
  if (product.rows > kMaxProductRows || product.k > kMostInputs || (product.up && product.residual))
    return static_cast<int>(cudaErrorInvalidValue);
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    return product.up ? launch_rows<T, true>(product, stream) : launch_rows<T, false>(product, stream);
  });
}

}  // namespace specdec::kernels::cuda
