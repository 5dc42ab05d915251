// Functions that the CUDA kernels share: conversion of numbers, loads of eight 16-bit numbers at once, and launches.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "engine/kernels/cuda.h"
#include "engine/kernels/cuda/launch.h"

namespace specdec::kernels::cuda {

inline __device__ float widen(float x) { return x; }
inline __device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }
inline __device__ float widen(__half x) { return __half2float(x); }
template <class T>
inline __device__ T narrow(float x);
template <>
inline __device__ float narrow(float x) {
  return x;
}
template <>
inline __device__ __nv_bfloat16 narrow(float x) {
  return __float2bfloat16(x);
}
template <>
inline __device__ __half narrow(float x) {
  return __float2half(x);
}

// Returns silu(gate) · up, rounded after silu and after the product.
template <class T>
inline __device__ T silu_times(T gate, T up) {
  const float g = widen(gate);
  return narrow<T>(widen(narrow<T>(g / (1.0f + expf(-g)))) * widen(up));
}

inline __device__ uint32_t bits(__nv_bfloat16 x) { return __bfloat16_as_ushort(x); }
inline __device__ uint32_t bits(__half x) { return __half_as_ushort(x); }
template <class T>
inline __device__ T number_of_bits(unsigned short x);
template <>
inline __device__ __nv_bfloat16 number_of_bits(unsigned short x) {
  return __ushort_as_bfloat16(x);
}
template <>
inline __device__ __half number_of_bits(unsigned short x) {
  return __ushort_as_half(x);
}

// Eight consecutive 16-bit numbers, two in each register.
struct Eight {
  uint32_t pairs[4] = {};
  __device__ uint32_t operator[](int i) const { return pairs[i / 2] >> (i % 2 * 16) & 0xffffu; }
};

// Loads the numbers [at, at + 8) of a row of n numbers; those beyond n are zero. With kVectors, n is a multiple of 8
// and the row is aligned to 16 bytes.
template <bool kVectors>
__device__ Eight load(const uint16_t* row, int64_t at, int64_t n) {
  Eight out;
  if constexpr (kVectors) {
    if (at >= n) return out;
    const uint4 all = *reinterpret_cast<const uint4*>(row + at);
    out.pairs[0] = all.x, out.pairs[1] = all.y, out.pairs[2] = all.z, out.pairs[3] = all.w;
  } else {
    for (int i = 0; i < 8; ++i)
      if (at + i < n) out.pairs[i / 2] |= static_cast<uint32_t>(row[at + i]) << (i % 2 * 16);
  }
  return out;
}

// Loads the numbers [at, at + 8) of a row of n, widened; those beyond n are zero. kVectors as above.
template <bool kVectors, class T>
__device__ void load_numbers(const T* row, int64_t at, int64_t n, float (&out)[8]) {
  if constexpr (sizeof(T) == 2) {
    const Eight all = load<kVectors>(reinterpret_cast<const uint16_t*>(row), at, n);
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = widen(number_of_bits<T>(static_cast<unsigned short>(all[i])));
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) out[i] = at + i < n ? widen(row[at + i]) : 0.0f;
  }
}

// Returns whether a kernel has been compiled for a GPU that can start it early. Code for older ones, which a new GPU
// runs, too, does not wait for the previous kernel.
constexpr bool is_compiled_to_wait() {
#ifdef __CUDA_ARCH_LIST__
  for (const int architecture : {__CUDA_ARCH_LIST__})
    if (architecture >= 900) return true;
  return false;
#else
  return true;
#endif
}

// Returns whether the current device can start a kernel before the previous one has ended, as sm_90 can. With
// SPECDEC_CUDA_OVERLAP=0 the answer is false, to find out whether this causes a fault.
inline bool overlaps_kernels() {
  static const char* const wish = std::getenv("SPECDEC_CUDA_OVERLAP");
  if (!is_compiled_to_wait() || (wish && std::strcmp(wish, "0") == 0)) return false;
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess && major >= 9;
}

// Launches a kernel with `shared` bytes of shared_memory() and with the given launch attributes, and returns the error
// code. It calls the runtime's function instead of using the <<<>>> syntax, so that a plain C++ compiler can also
// compile the kernels, for tests without a GPU.
template <class... Parameters, class... Arguments>
int launch_with(cudaLaunchAttribute* attributes, unsigned count, Stream stream, dim3 blocks, unsigned threads,
                size_t shared, void (*kernel)(Parameters...), Arguments... arguments) {
  constexpr unsigned kMostX = 0x7fffffffu, kMostOthers = 0xffffu;  // blocks of a grid, on all GPUs
  if (blocks.x > kMostX || blocks.y > kMostOthers || blocks.z > kMostOthers)
    return static_cast<int>(cudaErrorInvalidValue);
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return static_cast<int>(cudaLaunchKernelEx(&config, kernel, arguments...));
}

// Launches a kernel that starts when the previous kernel of the stream has ended.
template <class... Launched>
int launch(Stream stream, Launched... launched) {
  return launch_with(nullptr, 0, stream, launched...);
}

// Launches a kernel whose threads all call wait_for_previous_kernel() (ptx.h). If it is allowed and the device can, the
// kernel starts before the previous kernel of the stream has ended ("programmatic dependent launch").
template <class... Launched>
int launch_early(Stream stream, bool allowed, Launched... launched) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  return launch_with(&early, allowed && overlaps_kernels() ? 1 : 0, stream, launched...);
}

// Returns f(T{}) for the 16-bit element type T of `dtype`, or an error code for another dtype.
template <class F>
int with_16_bits(CudaDtype dtype, const F& f) {
  if (dtype == CudaDtype::kBFloat16) return f(__nv_bfloat16{});
  if (dtype == CudaDtype::kHalf) return f(__half{});
  return static_cast<int>(cudaErrorInvalidValue);
}
// Returns f(T{}) for the element type T of `dtype`.
template <class F>
int with_type(CudaDtype dtype, const F& f) {
  return dtype == CudaDtype::kFloat ? f(float{}) : with_16_bits(dtype, f);
}

}  // namespace specdec::kernels::cuda
