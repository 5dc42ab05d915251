// Turns rows of logits into the distributions that tokens are drawn from, by a block of threads. Weights are computed
// by the same operations as in decode/sampling/sampler.cpp, so they equal the host's bit for bit; sums are in fixed
// point (block_team.h). Functions are static, because tests link files that include this header in different versions.
#pragma once

#include <cmath>

#include "engine/kernels/cuda/border.h"

namespace specdec::kernels::cuda {

struct SampleMemory {
  TeamMemory team;
  BorderMemory border;
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

// Weights are summed in units of 2^-41 (fine), and the sums that are compared with the goal of top-p in units of 2^-40
// (fixed). Both conversions round down.
static inline __device__ unsigned long long fixed(double x) { return static_cast<unsigned long long>(x * 0x1p40); }
static inline __device__ unsigned long long fine(float x) {
  return static_cast<unsigned long long>(static_cast<double>(x) * 0x1p41);
}
static inline __device__ double of_fine(unsigned long long x) { return static_cast<double>(x) * 0x1p-41; }

struct Likeliest {
  int32_t token;  // the likeliest token of a row, or kBrokenRow if the row holds NaN or +∞, or only −∞
  float own;      // the largest of the logits that the calling thread has read
};
static inline __device__ Likeliest likeliest(Team& team, SampleMemory& memory, const float* row, int n) {
  team.once([&] { memory.team.answer = 0; });
  float best = -INFINITY;
  int32_t id = -1;
  sweep<false>(row, n, [&](int i, float x) {
    if (!(x <= 3.402823466e38f)) memory.team.answer = 1;
    if (x > best) best = x, id = i;
  });
  const int32_t token = team.least_of(-static_cast<double>(best), id);
  return {memory.team.answer != 0 || token < 0 ? kBrokenRow : token, best};
}

// Returns the probability at temperature 1 of a row's likeliest token.
static inline __device__ float confidence_of(Team& team, const float* row, int n, float largest) {
  unsigned long long own = 0;
  sweep<false>(row, n, [&](int, float x) { own += fine(exp_weight(__fadd_rn(x, -largest))); });
  return static_cast<float>(1.0 / of_fine(team.total_of(own)));
}

namespace {

// The elements of a row that top-k, top-p and min-p have kept so far, with their weights. If they are few, they are in
// the list of BorderMemory, and only finish() writes the row; otherwise they are in the row itself.
class Support {
 public:
  __device__ Support(Team& team, BorderMemory& memory, float* row, int n)
      : team_(team), memory_(memory), row_(row), n_(n) {}

  // Replaces the `top_k` largest logits by weight(logit) and the others by 0, and returns the sum of the weights. With
  // top_k = 0 no logit is excluded. `top_p` is that of the call of keep_mass() that follows, or 1.
  template <class Weight>
  __device__ double weigh(const Likeliest& best, int32_t top_k, double top_p, const Weight& weight) {
    const Key most = key_of(row_[best.token], 0);
    const Key least = top_k > 0 && top_k < n_ ? border_of_top(best.own, top_k, most) : 0;
    const auto weigh_one = [&](Key key, float x) { return key >= least ? weight(x) : 0.0f; };
    if (listed_) return rewrite(weigh_one);
    if (!(top_p < 1)) {
      team_.sync();  // all threads have read the largest logit before it is overwritten
      return rewrite(weigh_one);
    }
    // The border of top-p lies above this floor, because all n elements below it would have at most half of the mass
    // that top-p may exclude. So only elements above it go into the list.
    floor_ = static_cast<float>(0.5 * (1.0 - top_p) / n_);
    Lister lister(team_, memory_);
    const double total = rewrite([&](Key key, float x) {
      const float own = weigh_one(key, x);
      if (own > floor_) lister.add(key_of(own, id_of(key)), fixed(static_cast<double>(own)));
      return own;
    });
    few_ = memory_.listed <= kMostListed;
    return total;
  }

  // Keeps the smallest set of the largest weights that has at least the share top_p of `total`, the sum of all weights.
  // Returns the sum of the kept weights.
  __device__ double keep_mass(double top_p, double total) {
    const unsigned long long share = fixed(top_p * total), goal = share > 0 ? share : 1;
    Key least = 0;
    if (listed_ || few_) {
      least = border_of_list(team_, memory_, goal);
      listed_ = listed_ || least != 0;
    }
    if (!listed_)
      least = border_of(team_, memory_, RowElements{row_, n_}, n_, key_of(0, n_ - 1), key_of(floor_, n_ - 1),
                        key_of(1, 0), goal, [](float x) { return fixed(static_cast<double>(x)); });
    return rewrite([&](Key key, float x) { return key >= least ? x : 0.0f; });
  }

  __device__ double keep_at_least(double min_p) {
    return rewrite([&](Key, float x) { return static_cast<double>(x) < min_p ? 0.0f : x; });
  }

  // Writes weight · scale into the row, and 0 for the elements that were not kept.
  __device__ void finish(float scale) {
    if (!listed_) sweep<true>(row_, n_, [&](int, float& x) { x = __fmul_rn(x, scale); });
    if (listed_) sweep<true>(row_, n_, [](int, float& x) { x = 0; });
    team_.sync();
    if (listed_)
      team_.for_each(memory_.listed, [&](int j) {
        row_[id_of(memory_.list.keys[j])] = __fmul_rn(value_of(memory_.list.keys[j]), scale);
      });
  }

 private:
  // Returns the key of the k-th largest logit. If few logits are near it, fills the list with at least the k largest
  // and sets `listed_`. `own` is the largest logit that the thread has read. The k-th largest of these numbers is a
  // lower bound of the k-th largest logit, so smaller logits need not be looked at.
  __device__ Key border_of_top(float own, int32_t k, Key most) {
    const auto one = [](float) { return 1ull; };
    const auto goal = static_cast<unsigned long long>(k);
    const Key lowest = key_of(-INFINITY, n_ - 1);
    const int threads = static_cast<int>(blockDim.x);
    Key begin = lowest;
    if (k <= threads) {
      const Key none = key_of(-INFINITY, threads - 1);
      const Key of_threads =
          border_of(team_, memory_, ThreadElements{own}, threads, none, none, key_of(value_of(most), 0), goal, one);
      begin = key_of(value_of(of_threads), n_ - 1);
    }
    Lister lister(team_, memory_);
    RowElements{row_, n_}.visit([&](Key key, float) {
      if (key >= begin) lister.add(key, 1);
    });
    team_.sync();
    listed_ = memory_.listed <= kMostListed;
    return listed_ ? border_of_list(team_, memory_, goal)
                   : border_of(team_, memory_, RowElements{row_, n_}, n_, lowest, begin, most, goal, one);
  }

  // Replaces each weight by f(key, weight) and returns the sum of the new weights.
  template <class F>
  __device__ double rewrite(const F& f) {
    unsigned long long own = 0;
    if (listed_) {
      for (int j = static_cast<int>(threadIdx.x); j < memory_.listed; j += static_cast<int>(blockDim.x)) {
        Key& key = memory_.list.keys[j];
        const float x = f(key, value_of(key));
        key = key_of(x, id_of(key)), memory_.list.weights[j] = fixed(static_cast<double>(x));
        own += fine(x);
      }
    } else {
      sweep<true>(row_, n_, [&](int i, float& x) { x = f(key_of(x, i), x), own += fine(x); });
    }
    return of_fine(team_.total_of(own));
  }

  Team& team_;
  BorderMemory& memory_;
  float* row_;
  int n_;
  bool listed_ = false;  // all kept elements are in the list
  bool few_ = false;     // all elements with a weight above floor_ are in the list, and all elements are in the row
  float floor_ = 0;
};

}  // namespace

// Replaces the logits of a row with temperature > 0 by probabilities.
static inline __device__ void distribute(Team& team, SampleMemory& memory, const SampleRow& options, float* row, int n,
                                         const Likeliest& best) {
  const double widest = 3.4028234663852886e38, wanted = 1.0 / options.temperature;
  const float inverse = static_cast<float>(wanted < widest ? wanted : widest), largest = row[best.token];
  Support support(team, memory.border, row, n);
  double total = support.weigh(best, options.top_k, options.top_p,
                               [&](float logit) { return exp_weight(__fmul_rn(__fadd_rn(logit, -largest), inverse)); });
  if (options.top_p < 1.0) total = support.keep_mass(options.top_p, total);
  if (options.min_p > 0) total = support.keep_at_least(options.min_p);
  support.finish(static_cast<float>(1.0 / total));
}

}  // namespace specdec::kernels::cuda
