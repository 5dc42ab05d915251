// Products of few rows with quantised weights: int8 ones in the layout of kernels/cpu/cpu.h, so that one layout and one
// quantiser serve both devices, and those quantised by group (kernels/quantised_matrix.h). Codes become 16-bit numbers,
// exactly, on their way to the tensor cores; each unit of inputs has its own sum, which is multiplied by the
// outputs' scales. As in rows_linear.cu, a row's bits do not depend on other rows.
#include "engine/kernels/cuda/quantised_weights.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kWarps = kProductWarps;  // which take turns along k, a unit each
constexpr int kColumns = 8;            // rows of x in one tile
constexpr int kMost = 32;              // rows of a block; more would need more shared memory than every GPU gives
constexpr int kMostInputs = 1 << 22;   // so that a number's place in x has 32 bits

// Loads the inputs [at, at + 8) of a row of x that begins at number `row`. Without kVectors they may lie in another
// order.
template <bool kVectors>
__device__ Eight load_inputs(const uint16_t* x, const int32_t* order, int row, int at, int k) {
  if (kVectors || !order) return load<kVectors>(x + static_cast<uint32_t>(row + at), 0, k - at);
  Eight out;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (at + i < k) out.pairs[i / 2] |= static_cast<uint32_t>(x[row + order[at + i]]) << (i % 2 * 16);
  return out;
}

// Adds a unit. A unit has its own sum. inputs(i) are the i-th eight numbers of x, of which a tile has kEights; the
// next ones are on their way while some are multiplied.
template <class T, class Weights, int kTiles, class Inputs>
__device__ void add_unit(float (&sums)[kTiles][2][4], const Weights& w, Eight next, const Inputs& inputs) {
  constexpr int kEights = Weights::kInputs / 32;
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile) {
    float part[2][4] = {};
#pragma unroll
    for (int eight = 0; eight < kEights; ++eight) {
      const Eight in = next;
      if (const int i = tile * kEights + eight + 1; i < kTiles * kEights) next = inputs(i);
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t (&low)[4] = w.pairs[4 * eight + 2 * m], (&high)[4] = w.pairs[4 * eight + 2 * m + 1];
        mma_m16n8k16<T>(part[0], {low[0], low[1], high[0], high[1]}, {in.pairs[2 * m], in.pairs[2 * m + 1]});
        mma_m16n8k16<T>(part[1], {low[2], low[3], high[2], high[3]}, {in.pairs[2 * m], in.pairs[2 * m + 1]});
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[tile][h][i] += part[h][i] * w.scales[2 * h + i / 2];
  }
}

// Adds a warp's units of a block of a matrix, from the unit of `walk` on. inputs(unit, i) are those of x. Returns
// false, with nothing added, if `live` is given and *live is 0 after the previous kernel has ended.
template <class T, class Weights, int kTiles, class Inputs>
__device__ bool add_units(float (&sums)[kTiles][2][4], UnitWalk walk, int all_units, const int32_t* live,
                          const Inputs& inputs) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4,
            member = lane % 4;
  using Ring = WarpRing<Weights::kStageBytes>;
  Ring ring;
  int copied = warp;
  const auto copy = [&](uint8_t* stage) {
    Weights::begin_copies(stage, walk.place(), lane, copied < all_units);
    walk.next(), copied += kWarps;
  };
  uint4 words = {};
  const auto read_scales = [&](int unit, int steps) {  // of the unit that was the next to be copied `steps` ago
    if constexpr (Weights::kScalesApart)
      if (unit < all_units) words = Weights::scales_of(walk.before(steps), walk.place().outputs, group);
  };
  ring.start(copy);
  read_scales(warp, Ring::kStages - 1);
  wait_for_previous_kernel();
  if (live && *live == 0) {
    ring.finish();
    return false;
  }
#pragma unroll 1
  for (int u = warp; u < all_units; u += kWarps) {
    const Eight first = inputs(u, 0);
    Weights w;
    w.take(ring.template next<true>(copy), words, group, member);
    add_unit<T>(sums, w, first, [&](int i) { return inputs(u, i); });
    read_scales(u + kWarps, Ring::kStages - 1);
  }
  ring.finish();
  return true;
}

// A block computes kBlockOutputs outputs of up to kMost rows, as in rows_linear.cu.
template <class T, class Weights, int kTiles, bool kVectors, bool kGated>
__global__ void __launch_bounds__(kWarps * 32, kVectors && kTiles * Weights::kInputs <= 64 ? 3 : 2)
    rows_linear_quantised_tiles(const uint16_t* x, const int32_t* __restrict__ order,
                                const uint8_t* __restrict__ weight, const T* __restrict__ bias,
                                const uint8_t* __restrict__ up, const T* __restrict__ up_bias, const T* residual,
                                int all_rows, int64_t n, int k, int units, int64_t stride, const int32_t* live,
                                T* out) {
  let_next_kernel_start();
  using Parts = float[kWarps][kTiles * kColumns][kBlockOutputs];
  static_assert(sizeof(Parts) <= kRingBytes);
  Parts& parts = *static_cast<Parts*>(shared_memory());
  const int warp = static_cast<int>(threadIdx.x) / 32, group = static_cast<int>(threadIdx.x) % 32 / 4,
            member = static_cast<int>(threadIdx.x) % 4;
  const int begin = static_cast<int>(blockIdx.x) * kMost, rows = min(kMost, all_rows - begin);
  constexpr int kInputs = Weights::kInputs;
  if (Weights::kScalesApart) units = 1;  // which the compiler must know
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kBlockOutputs, group_bytes = Weights::group_bytes(units);
  const int all_units = (k + kInputs - 1) / kInputs, groups = (all_units + units - 1) / units;
  const int outputs = static_cast<int>(n - first < kBlockOutputs ? n - first : kBlockOutputs);
  // Rows of x beyond the last one are read as that one is.
  const auto inputs = [&](int unit, int i) {
    constexpr int kEights = kInputs / 32;
    const int row = min(begin + i / kEights * kColumns + group, all_rows - 1);
    return load_inputs<kVectors>(x, order, row * k, unit * kInputs + kInputs / 4 * member + 8 * (i % kEights), k);
  };
#pragma unroll 1
  for (int matrix = 0; matrix < (kGated ? 2 : 1); ++matrix) {
    if (matrix != 0) __syncthreads();  // all have read the parts of the first matrix
    float sums[kTiles][2][4] = {};
    const uint8_t* block = (matrix == 0 ? weight : up) + first * groups * group_bytes;
    const UnitWalk walk(block, outputs, units, group_bytes, warp, kWarps);
    if (!add_units<T, Weights>(sums, walk, all_units, live, inputs)) return;
    __syncthreads();  // all have read their weights, and the memory is free for the parts
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          parts[warp][tile * kColumns + 2 * member + i % 2][4 * group + 2 * h + i / 2] = sums[tile][h][i];
    __syncthreads();
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = tile * kColumns + static_cast<int>(threadIdx.x) / kBlockOutputs,
                output = static_cast<int>(threadIdx.x) % kBlockOutputs;
      if (row >= rows || output >= outputs) continue;
      const int64_t column = first + output;
      const T* own_bias = matrix == 0 ? bias : up_bias;
      float total = 0;
      for (int w = 0; w < kWarps; ++w) total += parts[w][row][output];
      if (own_bias) total += widen(own_bias[column]);
      T result = narrow<T>(total);
      T& to = out[(begin + row) * stride + column];
      if (kGated && matrix != 0) result = silu_times(to, result);  // `to` is what this thread has left there
      if (!kGated && residual) result = narrow<T>(widen(residual[(begin + row) * n + column]) + widen(result));
      to = result;
    }
  }
}

template <class T, class Weights, int kTiles, bool kGated>
int launch_tiles(const RowsProduct& p, int units, Stream stream) {
  const bool vectors = p.k % 8 == 0 && aligned_to_16(p.x) && !p.order;
  const dim3 blocks(static_cast<unsigned>((p.rows + kMost - 1) / kMost),
                    static_cast<unsigned>((p.n + kBlockOutputs - 1) / kBlockOutputs));
  return launch_early(stream, !p.new_weights, blocks, kWarps * 32, kRingBytes,
                      vectors ? rows_linear_quantised_tiles<T, Weights, kTiles, true, kGated>
                              : rows_linear_quantised_tiles<T, Weights, kTiles, false, kGated>,
                      static_cast<const uint16_t*>(p.x), p.order, static_cast<const uint8_t*>(p.weight),
                      static_cast<const T*>(p.bias), static_cast<const uint8_t*>(p.up),
                      static_cast<const T*>(p.up_bias), static_cast<const T*>(p.residual), static_cast<int>(p.rows),
                      p.n, static_cast<int>(p.k), units, p.stride, p.live, static_cast<T*>(p.out));
}

template <class T, class Weights, bool kGated>
int launch_rows(const RowsProduct& p, int units, Stream stream) {
  const auto tiles = p.rows <= 8    ? launch_tiles<T, Weights, 1, kGated>
                     : p.rows <= 16 ? launch_tiles<T, Weights, 2, kGated>
                                    : launch_tiles<T, Weights, 4, kGated>;
  return tiles(p, units, stream);
}

}  // namespace

int launch_rows_linear_quantised(CudaDtype dtype, const RowsProduct& product, Stream stream) {
  if (product.rows == 0 || product.n == 0) return 0;
  const bool by_group = product.packing != Packing::kInt8;
  if (product.k > kMostInputs || (product.up && product.residual) || !aligned_to_16(product.weight) ||
      !aligned_to_16(product.up) || (by_group && product.n % 4 != 0) || (!by_group && product.order))
    return static_cast<int>(cudaErrorInvalidValue);
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    return with_weights<T>(product.packing, product.group, [&](auto weights, int units) {
      using Weights = decltype(weights);
      return product.up ? launch_rows<T, Weights, true>(product, units, stream)
                        : launch_rows<T, Weights, false>(product, units, stream);
    });
  });
}

}  // namespace specdec::kernels::cuda
