// Tests the fibers on which kernels run: the order of threads, barriers, warp operations, atomics, borders, and the
// messages about kernels that break CUDA's rules. The kernels of this file are written as for CUDA.
#include "tests/kernels/fibers/fibers.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/kernels/fibers/arrays.h"

namespace specdec::fibers {
namespace {

template <class... Parameters, class... Arguments>
void start(const LaunchShape& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  const cudaLaunchConfig_t config = {shape.grid, shape.block, shape.shared_bytes, stream()};
  EXPECT_EQ(cudaLaunchKernelEx(&config, kernel, arguments...), cudaSuccess);
}

std::string fault_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const KernelFault& fault) {
    return fault.what();
  }
  return "no fault";
}

void expect_text(const std::string& found, const std::string& part) {
  EXPECT_NE(found.find(part), std::string::npos) << found;
}

__global__ void list_threads(int* count, unsigned* order) {
  const unsigned number = ((blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * 6 +
                          (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  order[atomicAdd(count, 1)] = number;
}

TEST(Fibers, EveryThreadOfEveryBlockRunsOnceInAnOrderOfTheSeed) {
  const auto order_of = [](uint64_t seed) {
    settings().seed = seed;
    settings().launches = 0;
    DeviceMemory<int> count(std::vector<int>{0});
    DeviceMemory<unsigned> order(72);
    start({{3, 2, 2}, {3, 1, 2}}, list_threads, count.data(), order.data());
    return order.read();
  };
  const std::vector<unsigned> first = order_of(1);
  EXPECT_EQ(std::set<unsigned>(first.begin(), first.end()).size(), 72u);
  EXPECT_EQ(*std::max_element(first.begin(), first.end()), 71u);
  EXPECT_EQ(first, order_of(1));
  EXPECT_NE(first, order_of(2));
}

__global__ void sum_by_halves(const int* in, int* out) {
  __shared__ int parts[128];
  parts[threadIdx.x] = in[threadIdx.x];
  for (unsigned width = 64; width > 0; width /= 2) {
    __syncthreads();
    if (threadIdx.x < width) parts[threadIdx.x] += parts[threadIdx.x + width];
  }
  if (threadIdx.x == 0) *out = parts[0];
}

TEST(Fibers, BarriersDivideWhatThreadsDo) {
  std::vector<int> values(128);
  for (int i = 0; i < 128; ++i) values[static_cast<size_t>(i)] = i;
  DeviceMemory<int> in(values), out(1);
  settings() = {};
  start({1, 128}, sum_by_halves, in.data(), out.data());
  EXPECT_EQ(out.read()[0], 127 * 64);
  ASSERT_EQ(settings().barriers.size(), 1u);
  settings().without = settings().barriers[0];
  start({1, 128}, sum_by_halves, in.data(), out.data());
  EXPECT_NE(out.read()[0], 127 * 64);
  settings() = {};
}

__global__ void one_warp(unsigned* out) {
  const unsigned l = threadIdx.x % 32, all = 0xffffffffu;
  unsigned* mine = out + threadIdx.x * 8;
  mine[0] = __shfl_sync(all, l, 5);
  mine[1] = __shfl_xor_sync(all, l, 3);
  mine[2] = __shfl_down_sync(all, l, 1, 8);
  mine[3] = __shfl_up_sync(all, l, 2);
  mine[4] = __ballot_sync(all, l % 3 == 0);
  mine[5] = static_cast<unsigned>(__any_sync(all, l == 9) * 2 + __all_sync(all, l < 31));
  mine[6] = l < 16 ? __shfl_xor_sync(0x0000ffffu, l, 1) : __shfl_xor_sync(0xffff0000u, l, 2);
  __syncwarp();
  mine[7] = static_cast<unsigned>(__shfl_sync(all, 0.5 + l, 7) * 2);
}

TEST(Fibers, WarpOperationsExchangeValuesOfLanes) {
  unsigned thirds = 0;
  for (unsigned l = 0; l < 32; l += 3) thirds |= 1u << l;
  DeviceMemory<unsigned> out(64 * 8);
  start({1, 64}, one_warp, out.data());
  const std::vector<unsigned> found = out.read();
  for (unsigned t = 0; t < 64; ++t) {
    const unsigned l = t % 32, *mine = &found[t * 8];
    EXPECT_EQ(mine[0], 5u);
    EXPECT_EQ(mine[1], l ^ 3);
    EXPECT_EQ(mine[2], l % 8 == 7 ? l : l + 1);
    EXPECT_EQ(mine[3], l < 2 ? l : l - 2);
    EXPECT_EQ(mine[4], thirds);
    EXPECT_EQ(mine[5], 2u);
    EXPECT_EQ(mine[6], l < 16 ? l ^ 1 : l ^ 2);
    EXPECT_EQ(mine[7], 15u);
  }
}

__global__ void use_atomics(int* at) {
  atomicAdd(at, 2);
  atomicMax(at + 1, static_cast<int>(threadIdx.x));
  atomicMin(at + 2, static_cast<int>(threadIdx.x));
  if (atomicCAS(at + 3, 0, 1) == 0) atomicExch(at + 4, 7);
  at[5] = at[5] + 1;  // a race on a GPU, but here threads change only where they wait
}

TEST(Fibers, AtomicsChangeMemoryInOnePiece) {
  DeviceMemory<int> at(std::vector<int>{0, 0, 99, 0, 0, 0});
  start({1, 96}, use_atomics, at.data());
  EXPECT_EQ(at.read(), (std::vector<int>{192, 95, 0, 1, 7, 96}));
}

__global__ void lose_updates(int* at) {
  const int before = *at;
  atomicAdd(at + 1, 1);
  *at = before + 1;
}

TEST(Fibers, ThreadsChangeBetweenAReadAndAWrite) {
  DeviceMemory<int> at(std::vector<int>{0, 0});
  start({1, 96}, lose_updates, at.data());
  EXPECT_LT(at.read()[0], 96);
}

__global__ void half_meet() {
  if (threadIdx.x < 40) __syncthreads();
}
__global__ void meet_elsewhere() {
  if (threadIdx.x < 40)
    __syncthreads();
  else
    __syncthreads();
}
__global__ void half_warp_leaves() {
  if (threadIdx.x % 32 < 16) __shfl_xor_sync(0xffffffffu, 1, 1);
}
__global__ void lanes_meet_elsewhere() {
  if (threadIdx.x % 2 == 0)
    __syncwarp();
  else
    __syncwarp();
}
__global__ void foreign_mask() { __shfl_xor_sync(0x1u, 1, 1); }
__global__ void read_outside_of_mask() {
  if (threadIdx.x < 4) __shfl_sync(0xfu, 1, 4);
}
__global__ void nothing() {}

TEST(Fibers, KernelsThatBreakRulesAreNamed) {
  expect_text(fault_of([] { start({2, 64}, half_meet); }),
              "40 of 64 threads wait for ever, the first at the barrier fibers_test.cpp:");
  expect_text(fault_of([] { start({1, 64}, meet_elsewhere); }), "threads of one block wait at different barriers");
  expect_text(fault_of([] { start({1, 64}, half_warp_leaves); }), "32 of 64 threads wait for ever");
  expect_text(fault_of([] { start({1, 64}, lanes_meet_elsewhere); }), "64 of 64 threads wait for ever");
  expect_text(fault_of([] { start({1, 40}, half_warp_leaves); }), "names lanes that the block has not");
  expect_text(fault_of([] { start({1, 64}, foreign_mask); }), "a lane that is not in its own mask");
  expect_text(fault_of([] { start({1, 32}, read_outside_of_mask); }), "reads lane 4, which is not in its mask");
  expect_text(fault_of([] { start({1, 1025}, nothing); }), "a block of 1025 threads");
  expect_text(fault_of([] { start({0, 32}, nothing); }), "a launch without blocks or threads");
  expect_text(fault_of([] { start({{1, 1, 65536}, 32}, nothing); }), "a grid of 1 by 65536 rows of blocks");
  expect_text(fault_of([] { start({1, 32, (48 << 10) + 1}, nothing); }), "49153 bytes of shared memory");
  EXPECT_EQ(fault_of([] { start({1, 32, 48 << 10}, nothing); }), "no fault");
  expect_text(fault_of([] {
                const cudaLaunchConfig_t on_default_stream = {1, 32};
                cudaLaunchKernelEx(&on_default_stream, nothing);
              }),
              "a launch on another stream");
  expect_text(fault_of([] { __syncthreads(); }), "outside of a launch");
  EXPECT_EQ(fault_of([] { start({2, 256}, nothing); }), "no fault");
}

__global__ void use_unwritten(float* out) {
  __shared__ float never[4];
  auto* dynamic = static_cast<float*>(dynamic_shared());
  if (threadIdx.x >= 4) return;
  out[threadIdx.x] = never[threadIdx.x];
  out[4 + threadIdx.x] = dynamic[threadIdx.x];
  never[threadIdx.x] = 1;
}

TEST(Fibers, UnwrittenMemoryIsNotANumber) {
  DeviceMemory<float> out(9);  // no thread writes the last element
  for (int again = 0; again < 2; ++again) {
    start({2, 32, 16}, use_unwritten, out.data());
    for (const float x : out.read()) EXPECT_NE(x, x);
  }
}

__global__ void write_at(int* at, int64_t place) { at[place] = 1; }
[[maybe_unused]] __global__ void write_shared_at(int64_t place, int* out) {
  __shared__ int words[4];
  int* volatile at = words;  // hides the array from the compiler, so that only the borders notice
  at[place] = 1;
  __syncthreads();
  *out = words[0];
}
__global__ void write_dynamic_at(int64_t place) { static_cast<int*>(dynamic_shared())[place] = 1; }
[[maybe_unused]] __global__ void read_pair_at(const char* at, uint64_t* out) {
  *out = *reinterpret_cast<const uint64_t*>(at);
}

TEST(Fibers, BordersNoticeAccessesOutside) {
  DeviceMemory<int> at(3);
#if defined(__SANITIZE_ADDRESS__)
  for (const int64_t place : {-1, 3, 900}) EXPECT_DEATH(start({1, 1}, write_at, at.data(), place), "use-after-poison");
  EXPECT_DEATH(start({1, 1}, write_shared_at, 4, at.data()), "global-buffer-overflow");
  EXPECT_DEATH(start({1, 1, 16}, write_dynamic_at, 4), "use-after-poison");
  DeviceMemory<uint64_t> out(1);
  EXPECT_DEATH(start({1, 1}, read_pair_at, reinterpret_cast<const char*>(at.data()) + 4, out.data()), "misaligned");
#else
  start({1, 1}, write_at, at.data(), 3);
  EXPECT_THROW(at.read(), std::runtime_error);
  EXPECT_THROW(start({1, 1, 16}, write_dynamic_at, 4), std::runtime_error);
#endif
}

TEST(Fibers, NarrowTypesRoundAsTheTwins) {
  for (uint64_t i = 0; i < 20000; ++i) {
    const double size = std::ldexp(philox_uniform(5, 1, i), static_cast<int>(i % 42) - 25);
    const auto x = static_cast<float>(i % 2 == 0 ? size : -size);
    ASSERT_EQ(static_cast<double>(__bfloat162float(__float2bfloat16(x))),
              kernels::twins::rounded(CudaDtype::kBFloat16, static_cast<double>(x)));
    if (std::fabs(x) < 65504)
      ASSERT_EQ(static_cast<double>(__half2float(__float2half(x))),
                kernels::twins::rounded(CudaDtype::kHalf, static_cast<double>(x)));
  }
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float x = fp16_to_float(half);
    if (x != x) continue;
    ASSERT_EQ(__float2half(x).bits, half);
    if (std::fabs(x) <= 65504) ASSERT_EQ(bits_of(CudaDtype::kHalf, static_cast<double>(x)), bits);
  }
  EXPECT_EQ(__float2half(65519.0f).bits, 0x7BFF);
  EXPECT_EQ(__float2half(65520.0f).bits, 0x7C00);
  EXPECT_NE(__bfloat162float(__float2bfloat16(NAN)), __bfloat162float(__float2bfloat16(NAN)));
}

}  // namespace
}  // namespace specdec::fibers
