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

// A block computes kOutputs outputs of all rows. x [rows, k], weight as quantise() writes it, bias [n] or null, out
// [rows, n].
template <class T, int kTiles, bool kVectors>
__global__ void __launch_bounds__(kWarps * 32, 1)
    rows_linear_int8_tiles(const uint16_t* __restrict__ x, const int8_t* __restrict__ weight,
                           const T* __restrict__ bias, int rows, int64_t n, int64_t k, T* __restrict__ out) {
  using Parts = float[kWarps][kTiles * kColumns][kOutputs];
  Parts& parts = *static_cast<Parts*>(shared_memory());
  const int warp = static_cast<int>(threadIdx.x) / 32, group = static_cast<int>(threadIdx.x) % 32 / 4,
            member = static_cast<int>(threadIdx.x) % 4;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kOutputs, groups = (k + kGroup - 1) / kGroup;
  const int outputs = static_cast<int>(n - first < kOutputs ? n - first : kOutputs);
  const int8_t* block = weight + first * groups * (kGroup + 4);
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
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += parts[w][row][output];
    if (bias) total += widen(bias[first + output]);
    out[row * n + first + output] = narrow<T>(total);
  }
}

template <class T, int kTiles>
int launch_tiles(const uint16_t* x, const int8_t* weight, const T* bias, int rows, int64_t n, int64_t k, T* out,
                 Stream stream) {
  const bool vectors = k % 8 == 0 && reinterpret_cast<uintptr_t>(x) % 16 == 0;
  return launch(stream, dim3(static_cast<unsigned>((n + kOutputs - 1) / kOutputs)), kWarps * 32,
                sizeof(float) * kWarps * kTiles * kColumns * kOutputs,
                vectors ? rows_linear_int8_tiles<T, kTiles, true> : rows_linear_int8_tiles<T, kTiles, false>, x, weight,
                bias, rows, n, k, out);
}

}  // namespace

int launch_rows_linear_int8(CudaDtype dtype, const void* x, const void* weight, const void* bias, int64_t rows,
                            int64_t n, int64_t k, void* out, Stream stream) {
  if (rows == 0 || n == 0) return 0;
  if (reinterpret_cast<uintptr_t>(weight) % 8 != 0) return static_cast<int>(cudaErrorInvalidValue);
  constexpr int64_t kMost = 32;  // rows of a launch; more would need more shared memory than every GPU gives
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    for (int64_t begin = 0; begin < rows; begin += kMost) {
      const int count = static_cast<int>(rows - begin < kMost ? rows - begin : kMost);
      const auto tiles = count <= 8 ? launch_tiles<T, 1> : count <= 16 ? launch_tiles<T, 2> : launch_tiles<T, 4>;
      if (const int code = tiles(static_cast<const uint16_t*>(x) + begin * k, static_cast<const int8_t*>(weight),
                                 static_cast<const T*>(bias), count, n, k, static_cast<T*>(out) + begin * n, stream))
        return code;
    }
    return 0;
  });
}

}  // namespace specdec::kernels::cuda
