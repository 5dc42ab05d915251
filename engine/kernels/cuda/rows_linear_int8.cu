// Products of few rows with int8 weights, in the layout of kernels/cpu/cpu.h, so that one file and one quantiser serve
// both devices. Weights become 16-bit numbers, exactly, on their way to the tensor cores; each group of inputs has its
// own sum, which is multiplied by the outputs' scales. As in rows_linear.cu, a row's bits do not depend on other rows.
#include <ptx.h>

#include "engine/kernels/cuda/device.h"
#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kWarps = 8;     // which take turns along k, a group each
constexpr int kOutputs = 32;  // of a block of threads: a block of the layout
constexpr int kGroup = 64;    // inputs that share a scale
constexpr int kColumns = 8;   // rows of x in one tile
constexpr int kMost = 32;     // rows of a block; more would need more shared memory than every GPU gives

template <class T>
__device__ uint32_t pair_of(int8_t low, int8_t high) {
  return bits(narrow<T>(static_cast<float>(low))) | bits(narrow<T>(static_cast<float>(high))) << 16;
}

// A lane's share of a group: inputs 16 · member to 16 · member + 15 of outputs 4 · group to 4 · group + 3.
template <class T>
struct GroupWeights {
  uint32_t pairs[8][4];  // of two inputs, by output
  float scales[4];

  // `at` is where the group begins, in a block of `outputs` outputs.
  __device__ void load(const int8_t* at, int outputs, int group, int member) {
    const auto* scale = reinterpret_cast<const float*>(at);
#pragma unroll
    for (int o = 0; o < 4; ++o) scales[o] = 4 * group + o < outputs ? scale[4 * group + o] : 0.0f;
    const int8_t* values = at + 4 * outputs;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int8_t* row = values + (8 * member + i) * 2 * outputs + 8 * group;
      int8_t some[8] = {};
      if (outputs == kOutputs) {
        const uint2 all = *reinterpret_cast<const uint2*>(row);
#pragma unroll
        for (int b = 0; b < 8; ++b) some[b] = static_cast<int8_t>((b < 4 ? all.x : all.y) >> (b % 4 * 8) & 0xffu);
      } else {
#pragma unroll
        for (int b = 0; b < 8; ++b)
          if (4 * group + b / 2 < outputs) some[b] = row[b];
      }
#pragma unroll
      for (int o = 0; o < 4; ++o) pairs[i][o] = pair_of<T>(some[2 * o], some[2 * o + 1]);
    }
  }
};

template <int kTiles>
struct ProductMemory {
  float parts[kWarps][kTiles * kColumns][kOutputs];
  float gates[kTiles * kColumns][kOutputs];  // results of the first matrix, while the second is multiplied
};

// A block computes kOutputs outputs of up to kMost rows, as in rows_linear.cu. Weights are as quantise() writes them.
template <class T, int kTiles, bool kVectors, bool kGated>
__global__ void __launch_bounds__(kWarps * 32, 1)
    rows_linear_int8_tiles(const uint16_t* __restrict__ x, const int8_t* __restrict__ weight,
                           const T* __restrict__ bias, const int8_t* __restrict__ up, const T* __restrict__ up_bias,
                           const T* residual, int all_rows, int64_t n, int64_t k, int64_t stride, T* out) {
  auto& [parts, gates] = *static_cast<ProductMemory<kTiles>*>(shared_memory());
  const int warp = static_cast<int>(threadIdx.x) / 32, group = static_cast<int>(threadIdx.x) % 32 / 4,
            member = static_cast<int>(threadIdx.x) % 4;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kMost;
  const int rows = min(kMost, all_rows - static_cast<int>(begin));
  x += begin * k;
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kOutputs, groups = (k + kGroup - 1) / kGroup;
  const int outputs = static_cast<int>(n - first < kOutputs ? n - first : kOutputs);
  for (int matrix = 0; matrix < (kGated ? 2 : 1); ++matrix) {
    const int8_t* block = (matrix == 0 ? weight : up) + first * groups * (kGroup + 4);
    float sums[kTiles][2][4] = {};
    for (int64_t g = warp; g < groups; g += kWarps) {
      GroupWeights<T> w;
      w.load(block + g * (kGroup + 4) * outputs, outputs, group, member);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int row = tile * kColumns + group;
        float part[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const Eight in = load<kVectors>(x + row * k, g * kGroup + 16 * member + 8 * half, row < rows ? k : 0);
#pragma unroll
          for (int m = 0; m < 2; ++m) {
            const uint32_t (&low)[4] = w.pairs[4 * half + 2 * m], (&high)[4] = w.pairs[4 * half + 2 * m + 1];
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
    if (matrix != 0) __syncthreads();  // all have read the parts of the first matrix
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          parts[warp][tile * kColumns + 2 * member + i % 2][4 * group + 2 * h + i / 2] = sums[tile][h][i];
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < rows * kOutputs; i += kWarps * 32) {
      const int row = i / kOutputs, output = i % kOutputs;
      if (output >= outputs) continue;
      const int64_t column = first + output;
      const T* own_bias = matrix == 0 ? bias : up_bias;
      float total = 0;
      for (int w = 0; w < kWarps; ++w) total += parts[w][row][output];
      if (own_bias) total += widen(own_bias[column]);
      T result = narrow<T>(total);
      if (kGated && matrix == 0) {
        gates[row][output] = widen(result);  // which this thread reads again
        continue;
      }
      if (kGated) result = silu_times(narrow<T>(gates[row][output]), result);
      if (residual) result = narrow<T>(widen(residual[(begin + row) * n + column]) + widen(result));
      out[(begin + row) * stride + column] = result;
    }
  }
}

template <class T, int kTiles, bool kGated>
int launch_tiles(const RowsProduct& p, Stream stream) {
  const bool vectors = p.k % 8 == 0 && reinterpret_cast<uintptr_t>(p.x) % 16 == 0;
  const dim3 blocks(static_cast<unsigned>((p.rows + kMost - 1) / kMost),
                    static_cast<unsigned>((p.n + kOutputs - 1) / kOutputs));
  return launch(
      stream, blocks, kWarps * 32, sizeof(ProductMemory<kTiles>),
      vectors ? rows_linear_int8_tiles<T, kTiles, true, kGated> : rows_linear_int8_tiles<T, kTiles, false, kGated>,
      static_cast<const uint16_t*>(p.x), static_cast<const int8_t*>(p.weight), static_cast<const T*>(p.bias),
      static_cast<const int8_t*>(p.up), static_cast<const T*>(p.up_bias), static_cast<const T*>(p.residual),
      static_cast<int>(p.rows), p.n, p.k, p.stride, static_cast<T*>(p.out));
}

template <class T, bool kGated>
int launch_rows(const RowsProduct& p, Stream stream) {
  const auto tiles = p.rows <= 8    ? launch_tiles<T, 1, kGated>
                     : p.rows <= 16 ? launch_tiles<T, 2, kGated>
                                    : launch_tiles<T, 4, kGated>;
  return tiles(p, stream);
}

}  // namespace

int launch_rows_linear_int8(CudaDtype dtype, const RowsProduct& product, Stream stream) {
  if (product.rows == 0 || product.n == 0) return 0;
  const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 8 == 0; };
  if (!aligned(product.weight) || !aligned(product.up)) return static_cast<int>(cudaErrorInvalidValue);
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    return product.up ? launch_rows<T, true>(product, stream) : launch_rows<T, false>(product, stream);
  });
}

}  // namespace specdec::kernels::cuda
