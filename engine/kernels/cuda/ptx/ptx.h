// Instructions that kernels need and that CUDA's headers do not offer as functions. Tests without a GPU include the
// header of the same name in tests/kernels/fibers/cuda instead, so every function here has the same meaning there. The
// lanes of a warp hold the elements of a matrix as in the PTX ISA, "Matrix Fragments for mma.m16n8k16".
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace specdec::kernels::cuda {

// Returns the block's shared memory, of the size given at the launch, aligned to 16 bytes. Kernel templates take all
// their shared memory from here: the tests without a GPU fill it with garbage, to catch reads of uninitialised memory,
// and cannot do so for the __shared__ variables of templates.
inline __device__ void* shared_memory() {
  extern __shared__ uint4 specdec_shared_memory[];
  return specdec_shared_memory;
}

// Returns a pointer to global memory. The compiler would not know where a mere number points to, and choose slower
// instructions.
template <class T>
__device__ T* global_memory(uint64_t address) {
  return static_cast<T*>(__cvta_global_to_generic(address));
}

// A kernel that was launched by launch_early() may run while the kernel before it in the stream still runs. This waits
// until that kernel has ended and its writes are visible. Before it, a kernel may read only what no kernel writes.
// Every thread calls it, also one that then returns at once: so a kernel ends after all kernels before it.
inline __device__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

// Allows the next kernel of the stream to start if launch_early() launches it, once all blocks have called this.
inline __device__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
#endif
}

// Begins to copy 16 bytes from global memory to shared memory, both aligned to 16 bytes, without keeping them in the
// first-level cache. Without `reads`, zeros are written and `from` is not read. The bytes are there once
// wait_for_copies() has returned to this thread, and for the other lanes of its warp after a __syncwarp().
inline __device__ void begin_copy(void* to, const void* from, bool reads) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from)),
                 "r"(reads ? 16 : 0)
               : "memory");
}

// Makes a group of the copies that this thread has begun since the last call, which may be none.
inline __device__ void end_group_of_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }

// Waits until all groups of this thread's copies are done but for the last kMost.
template <int kMost>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kMost) : "memory");
}

// Adds the product of two matrices to a third, as one warp: sum [16, 8] += a [16, 16] · b [16, 8], where a and b hold
// 16-bit numbers of type T and `sum` fp32. With group = lane / 4 and member = lane % 4, a lane holds
//   a[0] and a[2]: columns 2·member, 2·member + 1 of row `group`, and the same columns plus 8;
//   a[1] and a[3]: the same columns of row group + 8;
//   b[0] and b[1]: rows 2·member, 2·member + 1 of column `group`, and the same rows plus 8;
//   sum[0], sum[1]: columns 2·member, 2·member + 1 of row `group`; sum[2], sum[3]: the same columns of row group + 8.
// All 32 lanes must call it together.
template <class T>
__device__ void mma_m16n8k16(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);

template <>
inline __device__ void mma_m16n8k16<__nv_bfloat16>(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <>
inline __device__ void mma_m16n8k16<__half>(float (&sum)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Returns a · b + c for the two 16-bit numbers of type T in each register, rounded once. Subnormal results are kept.
template <class T>
__device__ uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c);

template <>
inline __device__ uint32_t fma_pairs<__nv_bfloat16>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}

template <>
inline __device__ uint32_t fma_pairs<__half>(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}

}  // namespace specdec::kernels::cuda
