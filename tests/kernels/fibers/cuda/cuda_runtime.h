// Stands in for CUDA's header of this name when kernels are compiled as C++ and run on fibers (fibers.h). It has only
// the names that the kernels of engine/kernels/cuda use.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tests/kernels/fibers/fibers.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
// Blocks run one after the other, so all blocks share one static copy. The scheduler finds the variables by the
// section.
#define __shared__ static __attribute__((section("specdec_shared")))

struct __attribute__((may_alias, aligned(16))) uint4 {
  unsigned x, y, z, w;
};
struct __attribute__((may_alias, aligned(16))) float4 {
  float x, y, z, w;
};
struct __attribute__((may_alias, aligned(8))) uint2 {
  unsigned x, y;
};
using uint3 = specdec::fibers::Index3;
using dim3 = specdec::fibers::Size3;

namespace specdec::fibers {

// A coordinate of the running thread or block. It is looked up at each use, because another thread may run then.
template <auto kIndex, auto kMember>
struct Coordinate {
  operator unsigned() const { return kIndex().*kMember; }
};
template <auto kIndex, class Index>
struct Coordinates {
  Coordinate<kIndex, &Index::x> x;
  Coordinate<kIndex, &Index::y> y;
  Coordinate<kIndex, &Index::z> z;
};

}  // namespace specdec::fibers

inline constexpr specdec::fibers::Coordinates<&specdec::fibers::thread_index, uint3> threadIdx = {};
inline constexpr specdec::fibers::Coordinates<&specdec::fibers::block_index, uint3> blockIdx = {};
inline constexpr specdec::fibers::Coordinates<&specdec::fibers::block_size, dim3> blockDim = {};
inline constexpr specdec::fibers::Coordinates<&specdec::fibers::grid_size, dim3> gridDim = {};

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  specdec::fibers::block_barrier(where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, std::source_location where = std::source_location::current()) {
  specdec::fibers::exchange(mask, 0, where);
}
inline void __threadfence() {}

namespace specdec::fibers {

// Exchanges a value of at most eight bytes among the lanes of `mask`. Returns the value of lane `from`.
template <class T>
T shuffle(unsigned mask, T value, unsigned from, std::source_location where) {
  static_assert(sizeof(T) <= sizeof(uint64_t) && std::is_trivially_copyable_v<T>);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  const LaneValues& all = exchange(mask, bits, where);
  if ((mask >> from & 1) == 0) fault("a shuffle reads lane " + std::to_string(from) + ", which is not in its mask");
  std::memcpy(&value, &all[from], sizeof(T));
  return value;
}

// Divides the warp into groups of `width` lanes. Returns the running lane's number in its group and the group's first
// lane.
inline std::pair<unsigned, unsigned> lane_group(int width) {
  const unsigned l = lane(), w = static_cast<unsigned>(width);
  return {l % w, l - l % w};
}

}  // namespace specdec::fibers

template <class T>
T __shfl_sync(unsigned mask, T value, int from, int width = 32,
              std::source_location where = std::source_location::current()) {
  const auto [place, first] = specdec::fibers::lane_group(width);
  return specdec::fibers::shuffle(mask, value, first + static_cast<unsigned>(from) % static_cast<unsigned>(width),
                                  where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32,
                  std::source_location where = std::source_location::current()) {
  const auto [place, first] = specdec::fibers::lane_group(width);
  const unsigned other = place ^ static_cast<unsigned>(bits);
  return specdec::fibers::shuffle(mask, value, first + (other < static_cast<unsigned>(width) ? other : place), where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32,
                   std::source_location where = std::source_location::current()) {
  const auto [place, first] = specdec::fibers::lane_group(width);
  return specdec::fibers::shuffle(mask, value, first + (place + by < static_cast<unsigned>(width) ? place + by : place),
                                  where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32,
                 std::source_location where = std::source_location::current()) {
  const auto [place, first] = specdec::fibers::lane_group(width);
  return specdec::fibers::shuffle(mask, value, first + (place >= by ? place - by : place), where);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              std::source_location where = std::source_location::current()) {
  const auto& all = specdec::fibers::exchange(mask, predicate != 0 ? 1 : 0, where);
  unsigned votes = 0;
  for (unsigned l = 0; l < 32; ++l)
    if ((mask >> l & 1) != 0 && all[l] != 0) votes |= 1u << l;
  return votes;
}
inline int __any_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) != 0 ? 1 : 0;
}
inline int __all_sync(unsigned mask, int predicate, std::source_location where = std::source_location::current()) {
  return __ballot_sync(mask, predicate, where) == mask ? 1 : 0;
}

namespace specdec::fibers {

// Atomically replaces *at by f(*at) and returns the old value. Other threads may run before it.
template <class T, class F>
T replace(T* at, const F& f) {
  may_yield();
  const T old = *at;
  *at = f(old);
  return old;
}

}  // namespace specdec::fibers

template <class T>
T atomicAdd(T* at, std::type_identity_t<T> x) {
  return specdec::fibers::replace(at, [&](T old) { return static_cast<T>(old + x); });
}
template <class T>
T atomicMax(T* at, std::type_identity_t<T> x) {
  return specdec::fibers::replace(at, [&](T old) { return old < x ? x : old; });
}
template <class T>
T atomicMin(T* at, std::type_identity_t<T> x) {
  return specdec::fibers::replace(at, [&](T old) { return x < old ? x : old; });
}
template <class T>
T atomicExch(T* at, std::type_identity_t<T> x) {
  return specdec::fibers::replace(at, [&](T) { return x; });
}
template <class T>
T atomicCAS(T* at, std::type_identity_t<T> expected, std::type_identity_t<T> x) {
  return specdec::fibers::replace(at, [&](T old) { return old == expected ? x : old; });
}

// Returns the four bytes of x (0 to 3) and y (4 to 7) that the lowest four digits of `which` name.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
  unsigned out = 0;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned from = which >> (4 * i) & 7;
    out |= ((from < 4 ? x : y) >> (from % 4 * 8) & 0xff) << (8 * i);
  }
  return out;
}
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a < b ? b : a; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1 };
using cudaStream_t = struct CUstream_st*;
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
enum cudaDeviceAttr { cudaDevAttrComputeCapabilityMajor = 75 };
inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 9, cudaSuccess; }
struct cudaLaunchConfig_t {
  dim3 gridDim = {}, blockDim = {};
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace specdec::fibers {

// Whether the running thread has waited for the kernel before its own (wait_for_previous_kernel() in ptx.h).
inline bool& waited() {
  static std::array<bool, 1024> all;
  return all[thread_index().x];
}

}  // namespace specdec::fibers

// A kernel that may start early must wait for the previous one in every thread: otherwise it could end before that one,
// and the kernel after it would start too early.
template <class... Parameters, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  if (config->stream != specdec::fibers::stream())
    specdec::fibers::fault("a launch on another stream than the caller's");
  const auto start = [&](Parameters... converted) {
    specdec::fibers::launch({config->gridDim, config->blockDim, config->dynamicSmemBytes}, [&] {
      specdec::fibers::waited() = config->numAttrs == 0;
      kernel(converted...);
      if (!specdec::fibers::waited()) specdec::fibers::fault("a thread does not wait for the previous kernel");
    });
  };
  start(std::forward<Arguments>(arguments)...);
  return cudaSuccess;
}
