// Products of few rows of x with quantised weights. The weights are either int8 in the layout of kernels/cpu/cpu.h, so
// that CPU and GPU share one layout and one quantiser, or quantised by group (kernels/quantised_matrix.h). Codes are
// converted exactly to 16-bit numbers for the tensor cores. Each unit of inputs has its own sum, which is multiplied by
// the scales of the outputs. As in rows_linear.cu, a row's result does not depend on the other rows, bit for bit.
#include "engine/kernels/cuda/quantised_weights.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kWarps = 8;    // the warps of a block take turns along k, one unit each
constexpr int kColumns = 8;  // rows of x in one tile
constexpr int kMost = 32;    // rows of x per block; more rows would need more shared memory than some GPUs have

template <int kTiles>
struct ProductMemory {
  float parts[kWarps][kTiles * kColumns][kBlockOutputs];
  float gates[kTiles * kColumns][kBlockOutputs];  // results of the first matrix, kept while the second is multiplied
};

// Loads the inputs [at, at + 8) of a row of x. `order`, which is used only without kVectors, permutes the inputs.
template <bool kVectors>
__device__ Eight load_inputs(const uint16_t* row, const int32_t* order, int64_t at, int64_t k) {
  if (kVectors || !order) return load<kVectors>(row, at, k);
  Eight out;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (at + i < k) out.pairs[i / 2] |= static_cast<uint32_t>(row[order[at + i]]) << (i % 2 * 16);
  return out;
}

// Each block computes kBlockOutputs outputs of up to kMost rows, as in rows_linear.cu.
template <class T, class Weights, int kTiles, bool kVectors, bool kGated>
__global__ void __launch_bounds__(kWarps * 32, 1)
    rows_linear_quantised_tiles(const uint16_t* __restrict__ x, const int32_t* __restrict__ order,
                                const uint8_t* __restrict__ weight, const T* __restrict__ bias,
                                const uint8_t* __restrict__ up, const T* __restrict__ up_bias, const T* residual,
                                int all_rows, int64_t n, int64_t k, int units, int64_t stride, const int32_t* live,
                                T* out) {
  if (live && *live == 0) return;
  auto& [parts, gates] = *static_cast<ProductMemory<kTiles>*>(shared_memory());
  const int warp = static_cast<int>(threadIdx.x) / 32, group = static_cast<int>(threadIdx.x) % 32 / 4,
            member = static_cast<int>(threadIdx.x) % 4;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kMost;
  const int rows = min(kMost, all_rows - static_cast<int>(begin));
  x += begin * k;
  constexpr int kInputs = Weights::kInputs;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kBlockOutputs, all_units = (k + kInputs - 1) / kInputs,
                groups = (all_units + units - 1) / units, group_bytes = Weights::group_bytes(units);
  const int outputs = static_cast<int>(n - first < kBlockOutputs ? n - first : kBlockOutputs);
  // The loop is unrolled so that loads of several units overlap; the number of registers bounds the factor.
  [[maybe_unused]] constexpr int kUnrolled = kVectors && kInputs == kUnitInputs ? (kTiles == 1   ? 4
                                                                                   : kTiles == 2 ? 2
                                                                                                 : 1)
                                                                                : 1;
  for (int matrix = 0; matrix < (kGated ? 2 : 1); ++matrix) {
    const uint8_t* block = (matrix == 0 ? weight : up) + first * groups * group_bytes;
    float sums[kTiles][2][4] = {};
    UnitWalk walk(warp, kWarps, units);
#pragma unroll kUnrolled
    for (int64_t u = warp; u < all_units; u += kWarps) {
      Weights w;
      w.load(walk.place(block, group_bytes, units, outputs), group, member);
      walk.next(units);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = tile * kColumns + group;
        float part[2][4] = {};
#pragma unroll
        for (int eight = 0; eight < kInputs / 32; ++eight) {
          const Eight in = load_inputs<kVectors>(x + row * k, order, u * kInputs + kInputs / 4 * member + 8 * eight,
                                                 row < rows ? k : 0);
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
    if (matrix != 0) __syncthreads();  // all threads have read `parts` of the first matrix
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          parts[warp][tile * kColumns + 2 * member + i % 2][4 * group + 2 * h + i / 2] = sums[tile][h][i];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < rows * kBlockOutputs; i += kWarps * 32) {
      const int row = i / kBlockOutputs, output = i % kBlockOutputs;
      if (output >= outputs) continue;
      const int64_t column = first + output;
      const T* own_bias = matrix == 0 ? bias : up_bias;
      float total = 0;
      for (int w = 0; w < kWarps; ++w) total += parts[w][row][output];
      if (own_bias) total += widen(own_bias[column]);
      T result = narrow<T>(total);
      if (kGated && matrix == 0) {
        gates[row][output] = widen(result);  // the same thread reads this again
        continue;
      }
      if (kGated) result = silu_times(narrow<T>(gates[row][output]), result);
      if (residual) result = narrow<T>(widen(residual[(begin + row) * n + column]) + widen(result));
      out[(begin + row) * stride + column] = result;
    }
  }
}

template <class T, class Weights, int kTiles, bool kGated>
int launch_tiles(const RowsProduct& p, int units, Stream stream) {
  const bool vectors = p.k % 8 == 0 && aligned_to_16(p.x) && !p.order;
  const dim3 blocks(static_cast<unsigned>((p.rows + kMost - 1) / kMost),
                    static_cast<unsigned>((p.n + kBlockOutputs - 1) / kBlockOutputs));
  return launch(stream, blocks, kWarps * 32, sizeof(ProductMemory<kTiles>),
                vectors ? rows_linear_quantised_tiles<T, Weights, kTiles, true, kGated>
                        : rows_linear_quantised_tiles<T, Weights, kTiles, false, kGated>,
                static_cast<const uint16_t*>(p.x), p.order, static_cast<const uint8_t*>(p.weight),
                static_cast<const T*>(p.bias), static_cast<const uint8_t*>(p.up), static_cast<const T*>(p.up_bias),
                static_cast<const T*>(p.residual), static_cast<int>(p.rows), p.n, p.k, units, p.stride, p.live,
                static_cast<T*>(p.out));
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
  if (!aligned_to_16(product.weight) || !aligned_to_16(product.up) || (by_group && product.n % 4 != 0) ||
      (!by_group && product.order))
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
