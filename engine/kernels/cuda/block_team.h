// The Team (rules/team.h) that consists of a block of CUDA threads. Sums are in fixed point with 61 fraction bits, so
// their result does not depend on the order of the additions or on the number of threads.
#pragma once

#include <type_traits>

#include "engine/kernels/cuda/device.h"
#include "engine/rules/team.h"

namespace specdec::kernels::cuda {

constexpr unsigned kWholeWarp = 0xffffffffu;

// Returns the sum of x over lane 0 to the calling lane of the warp.
static inline __device__ unsigned long long sum_up_to_lane(unsigned long long x) {
  for (int offset = 1; offset < 32; offset *= 2) {
    const unsigned long long other = __shfl_up_sync(kWholeWarp, x, static_cast<unsigned>(offset));
    if (static_cast<int>(threadIdx.x) % 32 >= offset) x += other;
  }
  return x;
}

// Calls f(i, row[i]) for i < n. The threads of the block divide the row, and each visits its elements in ascending
// order. Loads have 16 bytes. With kWrites, f may change the element, which is then written back.
template <bool kWrites, class F>
static __device__ void sweep(std::conditional_t<kWrites, float, const float>* row, int n, const F& f) {
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int past = static_cast<int>(reinterpret_cast<uintptr_t>(row) / sizeof(float) % 4);
  const int head = min(n, (4 - past) % 4), tail = head + (n - head) / 4 * 4;
  if (thread < head) f(thread, row[thread]);
#pragma unroll 2
  for (int at = head + 4 * thread; at < tail; at += 4 * threads) {
    float4 four = *reinterpret_cast<const float4*>(row + at);
    f(at, four.x), f(at + 1, four.y), f(at + 2, four.z), f(at + 3, four.w);
    if constexpr (kWrites) *reinterpret_cast<float4*>(row + at) = four;
  }
  if (tail + thread < n) f(tail + thread, row[tail + thread]);
}

// Shared memory of a team.
struct TeamMemory {
  unsigned long long sums[32];  // one sum per warp
  double scores[32];
  int32_t ids[32];
  int32_t answer;
  int32_t fault;  // nonzero: all weights of a distribution are 0, so verification cannot continue
};

// `Choices` makes the random choices: accept(team, purpose, probability), draw(team, purpose, n, weights) and
// draw_at(team, position, n, weights), each called by all threads together. The block has a multiple of 32 threads.
template <class Choices>
class BlockTeam {
 public:
  __device__ BlockTeam(TeamMemory& memory, Choices& choices)
      : memory_(memory),
        choices_(choices),
        thread_(static_cast<int>(threadIdx.x)),
        threads_(static_cast<int>(blockDim.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32) {
    once([&] { memory_.fault = 0; });
  }

  template <class F>
  __device__ double sum(int n, const F& f) {
    unsigned long long total = 0;
    for (int i = thread_; i < n; i += threads_) total += fixed(f(i));
    return static_cast<double>(total_of(total)) * 0x1p-61;
  }
  template <class F>
  __device__ void for_each(int n, const F& f) {
    for (int i = thread_; i < n; i += threads_) f(i);
    __syncthreads();
  }
  __device__ void sync() { __syncthreads(); }
  template <class F>
  __device__ void once(const F& f) {
    __syncthreads();
    if (thread_ == 0) f();
    __syncthreads();
  }
  __device__ bool accept(rules::Purpose purpose, double probability) {
    return choices_.accept(*this, purpose, probability);
  }
  __device__ int32_t draw(rules::Purpose purpose, int n, const float* weights) {
    return choices_.draw(*this, purpose, n, weights);
  }
  __device__ int32_t draw_at(int64_t position, int n, const float* weights) {
    return choices_.draw_at(*this, position, n, weights);
  }
  __device__ void no_mass(int, int32_t) { memory_.fault = 1; }
  __device__ bool failed() const { return memory_.fault != 0; }
  __device__ TeamMemory& memory() { return memory_; }

  // Returns the sum of `own` over all threads of the block.
  __device__ unsigned long long total_of(unsigned long long own) {
    own = warp_sum(own);
    if (lane_ == 0) memory_.sums[warp_] = own;
    __syncthreads();
    unsigned long long total = 0;
    for (int w = 0; w < threads_ / 32; ++w) total += memory_.sums[w];
    __syncthreads();
    return total;
  }

  // Returns the smallest id x with Σ_{y ≤ x} w_y > u · Σ w. If no weight is positive, sets the fault and returns −1.
  __device__ int32_t find(int n, const float* weights, double u) {
    // Each warp sums the weights of a range of ids. All warps then divide the range that contains the goal, and the
    // warp whose part contains it searches that part.
    int length = sum_by_warp(weights, 0, n);
    unsigned long long all = 0;
    for (int w = 0; w < threads_ / 32; ++w) all += memory_.sums[w];
    if (all == 0) {
      once([&] { memory_.fault = 1; });
      return -1;
    }
    auto goal = static_cast<unsigned long long>(u * static_cast<double>(all));
    if (goal >= all) goal = all - 1;
    int begin = length * warp_with(goal), end = min(n, begin + length);
    __syncthreads();  // all threads have read the sums
    length = sum_by_warp(weights, begin, end);
    const int warp = warp_with(goal);
    begin += length * warp, end = min(end, begin + length);
    if (warp_ == warp) walk(weights, begin, end, goal);
    __syncthreads();
    return memory_.answer;  // written again only after another barrier
  }

  // Returns the id with the smallest score(id); of equal scores, the lowest id. Negative scores are ignored. If no
  // score remains, sets the fault and returns −1.
  template <class F>
  __device__ int32_t least(int n, const F& score) {
    double best = INFINITY;
    int32_t id = -1;
    for (int i = thread_; i < n; i += threads_)
      if (const double s = score(i); s >= 0 && (id < 0 || s < best)) best = s, id = i;
    return least_of(best, id);
  }

  // Each thread passes its best score and the id that has it, or −1 as the id if it has none. Returns the id with the
  // smallest score of all threads; of equal scores, the lowest id. If no thread has an id, sets the fault and returns
  // −1.
  __device__ int32_t least_of(double best, int32_t id) {
    const auto take = [&](double other, int32_t other_id) {
      if (other_id >= 0 && (id < 0 || other < best || (other == best && other_id < id))) best = other, id = other_id;
    };
    for (int offset = 16; offset > 0; offset /= 2) {
      const double other = __shfl_xor_sync(kWholeWarp, best, offset);
      take(other, __shfl_xor_sync(kWholeWarp, id, offset));
    }
    if (lane_ == 0) memory_.scores[warp_] = best, memory_.ids[warp_] = id;
    __syncthreads();
    for (int w = 0; w < threads_ / 32; ++w) take(memory_.scores[w], memory_.ids[w]);
    __syncthreads();
    if (id < 0) once([&] { memory_.fault = 1; });
    return id;
  }

 private:
  static __device__ unsigned long long fixed(double x) { return static_cast<unsigned long long>(x * 0x1p61); }
  static __device__ unsigned long long warp_sum(unsigned long long x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kWholeWarp, x, offset);
    return x;
  }
  // Divides the ids [begin, end) among the warps, so that warp w has [begin + w · L, begin + (w + 1) · L), and sets
  // sums[w] to the sum of the weights of that range. Returns L.
  __device__ int sum_by_warp(const float* weights, int begin, int end) {
    const int warps = threads_ / 32, length = ((end - begin + warps - 1) / warps + 31) / 32 * 32;
    const int first = begin + warp_ * length, last = min(end, first + length);
    unsigned long long own = 0;
#pragma unroll 4
    for (int i = first + lane_; i < last; i += 32) own += fixed(static_cast<double>(weights[i]));
    own = warp_sum(own);
    if (lane_ == 0) memory_.sums[warp_] = own;
    __syncthreads();
    return length;
  }
  // Returns the first warp w with sums[0] + … + sums[w] > goal, and subtracts the sums of the warps before it from
  // goal.
  __device__ int warp_with(unsigned long long& goal) const {
    int warp = 0;
    while (warp < threads_ / 32 - 1 && goal >= memory_.sums[warp]) goal -= memory_.sums[warp++];
    return warp;
  }
  // One warp searches [begin, end) for the first id up to which the weights sum to more than `goal`, and stores the id
  // in `answer`.
  __device__ void walk(const float* weights, int begin, int end, unsigned long long goal) {
    unsigned long long passed = 0;
    for (int at = begin; at < end; at += 32) {
      const unsigned long long up_to =
          sum_up_to_lane(at + lane_ < end ? fixed(static_cast<double>(weights[at + lane_])) : 0);
      const unsigned beyond = __ballot_sync(kWholeWarp, passed + up_to > goal);
      if (beyond != 0) {
        if (lane_ == 0) memory_.answer = at + __ffs(static_cast<int>(beyond)) - 1;
        return;
      }
      passed += __shfl_sync(kWholeWarp, up_to, 31);
    }
  }

  TeamMemory& memory_;
  Choices& choices_;
  const int thread_, threads_, lane_, warp_;
};

}  // namespace specdec::kernels::cuda
