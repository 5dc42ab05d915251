// CUDA kernels for rms_norm, silu_mul, rope and gather_rows. Memory holds fp32, bf16 or fp16, and arithmetic is fp32.
// Results are rounded at the same points as in the reference implementation (ops_ref.cpp).
#include <ptx.h>

#include "engine/kernels/cuda/device.h"
#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kThreads = 256;

// Returns the sum of x over a block of kThreads threads, to every thread. The order of the additions does not depend on
// the grid size.
__device__ float block_sum(float x) {
  __shared__ float warps[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  float total = 0;
  for (int i = 0; i < kThreads / 32; ++i) total += warps[i];
  return total;
}

// A thread adds the squares of eight neighbouring numbers at a time (prepare_heads.cu does so, too). The first ones
// and their weights are all on their way at once; numbers of wider rows are read again after the sum.
template <class T, bool kVectors>
__global__ void __launch_bounds__(kThreads) rms_norm_rows(const T* x, const T* weight, float eps, int64_t n, T* out) {
  constexpr int kKept = 2;  // eights of a thread
  constexpr int64_t kStep = 8 * kThreads;
  let_next_kernel_start();
  x += blockIdx.x * n;
  out += blockIdx.x * n;
  const int64_t first = 8 * static_cast<int64_t>(threadIdx.x);
  float numbers[kKept][8], weights[kKept][8];
#pragma unroll
  for (int j = 0; j < kKept; ++j) {
    load_numbers<kVectors>(x, first + j * kStep, n, numbers[j]);
    load_numbers<kVectors>(weight, first + j * kStep, n, weights[j]);
  }
  float squares = 0;
  const auto add = [&](const float (&some)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) squares += some[i] * some[i];
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) add(numbers[j]);
  for (int64_t at = first + kKept * kStep; at < n; at += kStep) {
    float some[8];
    load_numbers<kVectors>(x, at, n, some);
    add(some);
  }
  const float scale = rsqrtf(block_sum(squares) / static_cast<float>(n) + eps);
  const auto write = [&](int64_t at, const float (&some)[8], const float (&factors)[8]) {
    T results[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const T normed = narrow<T>(some[i] * scale);
      results[i] = narrow<T>(widen(normed) * factors[i]);
    }
    if constexpr (kVectors) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pairs[i] = bits(results[2 * i]) | bits(results[2 * i + 1]) << 16;
      if (at < n) *reinterpret_cast<uint4*>(out + at) = {pairs[0], pairs[1], pairs[2], pairs[3]};
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (at + i < n) out[at + i] = results[i];
    }
  };
#pragma unroll
  for (int j = 0; j < kKept; ++j) write(first + j * kStep, numbers[j], weights[j]);
  for (int64_t at = first + kKept * kStep; at < n; at += kStep) {
    float some[8], factors[8];
    load_numbers<kVectors>(x, at, n, some);
    load_numbers<kVectors>(weight, at, n, factors);
    write(at, some, factors);
  }
}

template <class T>
__global__ void silu_mul_elements(const T* gate, const T* up, int64_t n, T* out) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= n) return;
  out[i] = silu_times(gate[i], up[i]);
}

// Rotates heads, with one thread per pair (i, i + d/2) of a head.
template <class T>
__global__ void rope_pairs(const T* x, const float* cos, const float* sin, int64_t pairs, int64_t heads, int64_t half,
                           T* out) {
  const int64_t p = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (p >= pairs) return;
  const int64_t head = p / half, i = p % half, low = head * 2 * half + i, angle = head / heads * half + i;
  const float a = widen(x[low]), b = widen(x[low + half]), c = widen(narrow<T>(cos[angle])),
              s = widen(narrow<T>(sin[angle]));
  out[low] = narrow<T>(widen(narrow<T>(a * c)) - widen(narrow<T>(b * s)));
  out[low + half] = narrow<T>(widen(narrow<T>(b * c)) + widen(narrow<T>(a * s)));
}

template <class T>
__global__ void gather(const T* table, const int32_t* ids, int64_t n, T* out) {
  const T* from = table + ids[blockIdx.x] * n;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) out[blockIdx.x * n + i] = from[i];
}

unsigned blocks(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

}  // namespace

int launch_rms_norm(CudaDtype dtype, const void* x, const void* weight, float eps, int64_t rows, int64_t n, void* out,
                    Stream stream) {
  if (rows == 0) return 0;
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    auto* kernel = rms_norm_rows<T, false>;
    if constexpr (sizeof(T) == 2) {
      const auto aligned = [](const void* at) { return reinterpret_cast<uintptr_t>(at) % 16 == 0; };
      if (n % 8 == 0 && aligned(x) && aligned(weight) && aligned(out)) kernel = rms_norm_rows<T, true>;
    }
    return launch(stream, dim3(static_cast<unsigned>(rows)), kThreads, 0, kernel, static_cast<const T*>(x),
                  static_cast<const T*>(weight), eps, n, static_cast<T*>(out));
  });
}

int launch_silu_mul(CudaDtype dtype, const void* gate, const void* up, int64_t n, void* out, Stream stream) {
  if (n == 0) return 0;
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, dim3(blocks(n)), kThreads, 0, silu_mul_elements<T>, static_cast<const T*>(gate),
                  static_cast<const T*>(up), n, static_cast<T*>(out));
  });
}

int launch_rope(CudaDtype dtype, const void* x, const float* cos, const float* sin, int64_t rows, int64_t heads,
                int64_t d, void* out, Stream stream) {
  const int64_t pairs = rows * heads * (d / 2);
  if (pairs == 0) return 0;
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, dim3(blocks(pairs)), kThreads, 0, rope_pairs<T>, static_cast<const T*>(x), cos, sin, pairs,
                  heads, d / 2, static_cast<T*>(out));
  });
}

int launch_gather_rows(CudaDtype dtype, const void* table, const int32_t* ids, int64_t rows, int64_t n, void* out,
                       Stream stream) {
  if (rows == 0) return 0;
  return with_type(dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, dim3(static_cast<unsigned>(rows)), kThreads, 0, gather<T>, static_cast<const T*>(table), ids,
                  n, static_cast<T*>(out));
  });
}

}  // namespace specdec::kernels::cuda
