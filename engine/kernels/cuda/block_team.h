// The Team (rules/team.h) that consists of a block of CUDA threads. Sums are in fixed point with 61 fraction bits, so
// their result does not depend on the order of the additions or on the number of threads.
#pragma once

#include "engine/kernels/cuda/device.h"
#include "engine/rules/team.h"

namespace specdec::kernels::cuda {

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

  // Returns the smallest id x with Σ_{y ≤ x} w_y > u · Σ w. If no weight is positive, sets the fault and returns −1.
  __device__ int32_t find(int n, const float* weights, double u) {
    // Each warp sums a range of ids; the warp whose range contains the goal then searches it.
    const int warps = threads_ / 32, stretch = ((n + warps - 1) / warps + 31) / 32 * 32, begin = warp_ * stretch;
    const int end = min(n, begin + stretch);
    unsigned long long own = 0;
    for (int i = begin + lane_; i < end; i += 32) own += fixed(static_cast<double>(weights[i]));
    own = warp_sum(own);
    if (lane_ == 0) memory_.sums[warp_] = own;
    __syncthreads();
    unsigned long long all = 0, before = 0;
    for (int w = 0; w < warps; ++w) {
      if (w == warp_) before = all;
      all += memory_.sums[w];
    }
    if (all == 0) {
      once([&] { memory_.fault = 1; });
      return -1;
    }
    auto goal = static_cast<unsigned long long>(u * static_cast<double>(all));
    if (goal >= all) goal = all - 1;
    if (goal >= before && goal < before + own) walk(weights, begin, end, goal - before);
    __syncthreads();
    return memory_.answer;  // written again only after another barrier
  }

  // Returns the id with the smallest score(id); of equal scores, the lowest id. Negative scores are ignored. If no
  // score remains, sets the fault and returns −1.
  template <class F>
  __device__ int32_t least(int n, const F& score) {
    double best = INFINITY;
    int32_t id = -1;
    const auto take = [&](double other, int32_t other_id) {
      if (other_id >= 0 && (id < 0 || other < best || (other == best && other_id < id))) best = other, id = other_id;
    };
    for (int i = thread_; i < n; i += threads_)
      if (const double s = score(i); s >= 0) take(s, i);
    for (int offset = 16; offset > 0; offset /= 2) {
      const double other = __shfl_xor_sync(kAll, best, offset);
      take(other, __shfl_xor_sync(kAll, id, offset));
    }
    if (lane_ == 0) memory_.scores[warp_] = best, memory_.ids[warp_] = id;
    __syncthreads();
    for (int w = 0; w < threads_ / 32; ++w) take(memory_.scores[w], memory_.ids[w]);
    __syncthreads();
    if (id < 0) once([&] { memory_.fault = 1; });
    return id;
  }

 private:
  static constexpr unsigned kAll = 0xffffffffu;
  static __device__ unsigned long long fixed(double x) { return static_cast<unsigned long long>(x * 0x1p61); }
  static __device__ unsigned long long warp_sum(unsigned long long x) {
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kAll, x, offset);
    return x;
  }
  __device__ unsigned long long total_of(unsigned long long x) {
    x = warp_sum(x);
    if (lane_ == 0) memory_.sums[warp_] = x;
    __syncthreads();
    unsigned long long total = 0;
    for (int w = 0; w < threads_ / 32; ++w) total += memory_.sums[w];
    __syncthreads();
    return total;
  }
  // One warp searches [begin, end) for the first id up to which the weights sum to more than `goal`, and stores the id
  // in `answer`.
  __device__ void walk(const float* weights, int begin, int end, unsigned long long goal) {
    unsigned long long passed = 0;
    for (int at = begin; at < end; at += 32) {
      unsigned long long up_to = at + lane_ < end ? fixed(static_cast<double>(weights[at + lane_])) : 0;
      for (int offset = 1; offset < 32; offset *= 2) {
        const unsigned long long other = __shfl_up_sync(kAll, up_to, static_cast<unsigned>(offset));
        if (lane_ >= offset) up_to += other;
      }
      const unsigned beyond = __ballot_sync(kAll, passed + up_to > goal);
      if (beyond != 0) {
        if (lane_ == 0) memory_.answer = at + __ffs(static_cast<int>(beyond)) - 1;
        return;
      }
      passed += __shfl_sync(kAll, up_to, 31);
    }
  }

  TeamMemory& memory_;
  Choices& choices_;
  const int thread_, threads_, lane_, warp_;
};

}  // namespace specdec::kernels::cuda
