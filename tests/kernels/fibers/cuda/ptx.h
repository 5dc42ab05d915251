// Stands in for engine/kernels/cuda/ptx/ptx.h. The instructions of a warp are computed by its 32 fibers.
#pragma once

#include <array>
#include <cstdint>
#include <deque>

#include "tests/kernels/fibers/cuda/cuda_bf16.h"
#include "tests/kernels/fibers/cuda/cuda_fp16.h"
#include "tests/kernels/fibers/cuda/cuda_runtime.h"
#include "tests/kernels/fibers/fibers.h"

namespace specdec::kernels::cuda {

inline void* shared_memory() { return fibers::dynamic_shared(); }
template <class T>
T* global_memory(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

// On fibers each kernel ends before the next one starts.
inline void wait_for_previous_kernel() { fibers::waited() = true; }
inline void let_next_kernel_start() {}

// The copies to shared memory that a thread has begun. A GPU may do them at any time until they are waited for: here
// half are done at once, and the others when they must be.
struct Copies {
  struct Copy {
    uint4* to;
    uint4 value;
    uint64_t group;
  };
  std::deque<Copy> open;
  uint64_t groups = 0, begun = 0;
  int64_t launch = -1;
  unsigned block = 0;

  // Returns those of the running thread. A launch that ended with a fault may have left some, which are forgotten.
  static Copies& mine() {
    static std::array<Copies, 1024> all;
    Copies& copies = all[fibers::thread_index().x];
    const fibers::Index3& at = fibers::block_index();
    const fibers::Size3& size = fibers::grid_size();
    const unsigned block = (at.z * size.y + at.y) * size.x + at.x;
    if (copies.launch != fibers::settings().launches || copies.block != block)
      copies = {.open = {}, .launch = fibers::settings().launches, .block = block};
    return copies;
  }
};

inline void begin_copy(void* to, const void* from, bool reads) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || (reads && reinterpret_cast<uintptr_t>(from) % 16 != 0))
    fibers::fault("a copy of 16 bytes that is not aligned to them");
  Copies& copies = Copies::mine();
  const uint4 value = reads ? *static_cast<const uint4*>(from) : uint4{0, 0, 0, 0};
  const uint64_t mixed = (++copies.begun * 2 + fibers::thread_index().x * 641 + copies.block) * 0x9e3779b97f4a7c15ull;
  if (mixed >> 63 != 0)
    *static_cast<uint4*>(to) = value;
  else
    copies.open.push_back({static_cast<uint4*>(to), value, copies.groups});
}
inline void end_group_of_copies() { ++Copies::mine().groups; }
template <int kMost>
void wait_for_copies() {
  Copies& copies = Copies::mine();
  for (; !copies.open.empty() && copies.open.front().group + kMost < copies.groups; copies.open.pop_front())
    *copies.open.front().to = copies.open.front().value;
}

// Converts a 16-bit number, half of a register, to double. bits_of_number() does the reverse.
template <class T>
double number_of(uint16_t bits) {
  if constexpr (std::is_same_v<T, __half>) return static_cast<double>(__half2float({bits}));
  return static_cast<double>(__bfloat162float({bits}));
}
template <class T>
uint16_t bits_of_number(float x) {
  if constexpr (std::is_same_v<T, __half>) return __float2half(x).bits;
  return __float2bfloat16(x).bits;
}

// Computes a · b + c for pairs of 16-bit numbers. The kernels use it only where the result is exact in 16 bits, so the
// rounding to fp32 in between changes nothing.
template <class T>
uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out = 0;
  for (int i = 0; i < 2; ++i) {
    const auto half = [i](uint32_t pair) { return number_of<T>(static_cast<uint16_t>(pair >> (16 * i))); };
    out |= static_cast<uint32_t>(bits_of_number<T>(static_cast<float>(half(a) * half(b) + half(c)))) << (16 * i);
  }
  return out;
}

template <class T>
void mma_m16n8k16(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  std::source_location where = std::source_location::current()) {
  constexpr unsigned kAll = 0xffffffffu;
  const auto both = [](uint32_t low, uint32_t high) { return static_cast<uint64_t>(high) << 32 | low; };
  const fibers::LaneValues near = fibers::exchange(kAll, both(a[0], a[1]), where),
                           far = fibers::exchange(kAll, both(a[2], a[3]), where),
                           right = fibers::exchange(kAll, both(b[0], b[1]), where);
  // Returns number `i` (0 to 3) of two registers with two 16-bit numbers each.
  const auto part = [](uint64_t pair, unsigned i) { return number_of<T>(static_cast<uint16_t>(pair >> (16 * i))); };
  const unsigned group = fibers::lane() / 4, member = fibers::lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = group + i / 2 * 8, column = 2 * member + i % 2;
    double total = 0;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned place = row % 8 * 4 + k % 8 / 2;  // the lane that holds a[row, k]
      const double x = part((k < 8 ? near : far)[place], row / 8 * 2 + k % 2),
                   y = part(right[column * 4 + k % 8 / 2], k / 8 * 2 + k % 2);
      total += x * y;
    }
    sum[i] = static_cast<float>(static_cast<double>(sum[i]) + total);
  }
}

}  // namespace specdec::kernels::cuda
