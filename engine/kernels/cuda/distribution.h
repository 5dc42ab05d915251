// Turns rows of logits into the distributions that tokens are drawn from, by a block of threads. Weights are computed
// by the same operations as in decode/sampling/sampler.cpp, so they equal the host's bit for bit; sums are in fixed
// point (block_team.h). The functions are static, because tests link files that include this header in different
// versions.
#pragma once

#include <cmath>

#include "engine/kernels/cuda/block_team.h"

namespace specdec::kernels::cuda {

constexpr int kBins = 256;

struct SampleMemory {
  TeamMemory team;
  unsigned long long bins[kBins];  // histogram of one 8-bit digit of the keys
  unsigned long long key;          // the key that border() is building
  unsigned long long taken;
};

// Returns e^x for x <= 0, and 0 for x <= -87, as exp4() of decode/sampling/sampler.cpp does. The intrinsics keep the
// compiler from fusing multiplications and additions, which would round differently.
static inline __device__ float exp_weight(float x) {
  if (!(x > -87.0f)) return 0.0f;
  const auto times = [](float a, float b) { return __fmul_rn(a, b); };
  const auto plus = [](float a, float b) { return __fadd_rn(a, b); };
  constexpr float kRound = 12582912.0f;
  const float shifted = plus(times(x, 1.44269504f), kRound), n = plus(shifted, -kRound);
  const float r = plus(plus(x, -times(n, 0.693359375f)), times(n, 2.12194440e-4f));
  float y = plus(times(r, 1.9875691500e-4f), 1.3981999507e-3f);
  y = plus(times(y, r), 8.3334519073e-3f);
  y = plus(times(y, r), 4.1665795894e-2f);
  y = plus(times(y, r), 1.6666665459e-1f);
  y = plus(times(y, r), 5.0000001201e-1f);
  y = plus(plus(times(y, times(r, r)), r), 1.0f);
  return times(y, __int_as_float((static_cast<int>(n) + 127) << 23));
}

// Returns a sort key: larger for larger values and, among equal values, larger for smaller ids.
static inline __device__ unsigned long long key_of(float value, int id) {
  const uint32_t bits = __float_as_uint(value);
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

struct NoChoices {};
using Team = BlockTeam<NoChoices>;

// Returns the largest key such that the elements with this key or a larger one have a total measure of at least `goal`,
// or 0 if all elements have less. measure(i) is 0 for elements to ignore. The key is found eight bits at a time.
template <class Measure>
static __device__ unsigned long long border(Team& team, SampleMemory& memory, const float* values, int n,
                                            unsigned long long goal, const Measure& measure) {
  team.once([&] { memory.key = 0, memory.taken = 0; });
  for (int shift = 56; shift >= 0; shift -= 8) {
    team.for_each(kBins, [&](int bin) { memory.bins[bin] = 0; });
    const unsigned long long found = memory.key;
    team.for_each(n, [&](int i) {
      const unsigned long long key = key_of(values[i], i), weight = measure(i);
      const bool fits = shift == 56 || (key ^ found) >> (shift + 8) == 0;
      if (weight != 0 && fits) atomicAdd(&memory.bins[key >> shift & 0xff], weight);
    });
    team.once([&] {
      unsigned long long taken = memory.taken;
      int bin = kBins - 1;
      while (bin > 0 && taken + memory.bins[bin] < goal) taken += memory.bins[bin--];
      memory.key |= static_cast<unsigned long long>(bin) << shift;
      memory.taken = taken;
    });
  }
  // If all elements together are below the goal, the search ends in the lowest bin without reaching the goal.
  return memory.taken + memory.bins[memory.key & 0xff] < goal ? 0 : memory.key;
}

static inline __device__ unsigned long long fixed(double x) { return static_cast<unsigned long long>(x * 0x1p40); }

// Returns Σ f(i), where f may write element i. team.sum() needs sums below 4, and sums of weights are below 2^22, so
// they are scaled by 2^-20.
template <class F>
static __device__ double mass_of(Team& team, int n, const F& f) {
  return team.sum(n, [&](int i) { return static_cast<double>(f(i)) * 0x1p-20; }) * 0x1p20;
}

// Returns the likeliest token of a row, or kBrokenRow if the row holds NaN or +∞, or only −∞.
static inline __device__ int32_t likeliest(Team& team, SampleMemory& memory, const float* row, int n) {
  team.once([&] { memory.team.answer = 0; });
  const int32_t best = team.least(n, [&](int i) {
    if (!(row[i] <= 3.402823466e38f)) memory.team.answer = 1;
    return row[i] == -INFINITY ? -1.0 : static_cast<double>(0xffffffffu - (key_of(row[i], i) >> 32));
  });
  return memory.team.answer != 0 || best < 0 ? kBrokenRow : best;
}

// Returns the probability at temperature 1 of a row's likeliest token.
static inline __device__ float confidence_of(Team& team, const float* row, int n, float largest) {
  return static_cast<float>(1.0 / mass_of(team, n, [&](int i) { return exp_weight(__fadd_rn(row[i], -largest)); }));
}

// Replaces the logits of a row with temperature > 0 by probabilities. `largest` is the largest logit.
static inline __device__ void distribute(Team& team, SampleMemory& memory, const SampleRow& options, float* row, int n,
                                         float largest) {
  const double most = 3.4028234663852886e38, wanted = 1.0 / options.temperature;
  const float inverse = static_cast<float>(wanted < most ? wanted : most);
  unsigned long long least = 0;
  if (options.top_k > 0 && options.top_k < n)
    least = border(team, memory, row, n, static_cast<unsigned long long>(options.top_k), [](int) { return 1ull; });
  team.sync();  // all threads have read the largest logit and the key before they are overwritten
  double total = mass_of(team, n, [&](int i) {
    return row[i] = key_of(row[i], i) >= least ? exp_weight(__fmul_rn(__fadd_rn(row[i], -largest), inverse)) : 0.0f;
  });
  if (options.top_p < 1.0) {
    const auto weight = [&](int i) { return fixed(static_cast<double>(row[i])); };
    least = border(team, memory, row, n, fixed(options.top_p * total), weight);
    total = mass_of(team, n, [&](int i) {
      if (key_of(row[i], i) < least) row[i] = 0;
      return row[i];
    });
  }
  if (options.min_p > 0)
    total = mass_of(team, n, [&](int i) {
      if (static_cast<double>(row[i]) < options.min_p) row[i] = 0;
      return row[i];
    });
  const auto scale = static_cast<float>(1.0 / total);
  team.for_each(n, [&](int i) { row[i] = __fmul_rn(row[i], scale); });
}

}  // namespace specdec::kernels::cuda
