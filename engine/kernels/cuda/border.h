// The border between the elements of a row that are kept and the smaller ones that are not, for top-k and top-p. An
// element's key orders it: larger values have larger keys, and of equal values the lower id has. A search divides a
// range of keys into bins, sums the weights in each, and goes on with the bin in which the sum reaches its goal, until
// so few elements are left that they can be compared with each other.
//
// All sums are integers, so they do not depend on the order of the threads. Counters in shared memory have 32 bits,
// because the GPU adds to those at once; a sum of 64 bits would be a loop of compare-and-swap.
#pragma once

#include "engine/kernels/cuda/block_team.h"

namespace specdec::kernels::cuda {

using Key = unsigned long long;
constexpr int kBins = 2048;
constexpr int kMostListed = 512;
constexpr int kMostCompared = 128;  // elements that a search rather compares with each other than sorts into bins

struct BorderMemory {
  union {
    struct {
      uint32_t low[kBins], high[kBins];  // of the sum in each bin
    } bins;
    struct {
      Key keys[kMostListed];
      unsigned long long weights[kMostListed];
    } list;
  };
  unsigned long long taken;  // before the bin that was found, or of all bins
  Key answer;
  int32_t bin;
  int32_t listed;  // above kMostListed: there are more than the list holds
};

struct NoChoices {};
using Team = BlockTeam<NoChoices>;

static inline __device__ Key key_of(float value, int id) {
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));  // so −0 is 0
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
static inline __device__ float value_of(Key key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
static inline __device__ int id_of(Key key) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key)); }

namespace {  // classes, too, must not be shared by files with different versions of this header

// Empties the list, and then adds elements to it from all threads of a block. A thread that has far more elements than
// others ends the listing.
class Lister {
 public:
  __device__ Lister(Team& team, BorderMemory& memory)
      : memory_(memory), left_(max(8, 2 * kMostListed / static_cast<int>(blockDim.x))) {
    team.once([&] { memory.listed = 0; });
  }
  __device__ void add(Key key, unsigned long long weight) {
    if (left_ < 0) return;
    const auto place = static_cast<unsigned>(atomicAdd(&memory_.listed, left_ > 0 ? 1 : kMostListed + 1));
    --left_;
    if (place < kMostListed) memory_.list.keys[place] = key, memory_.list.weights[place] = weight;
  }

 private:
  BorderMemory& memory_;
  int left_;
};

}  // namespace

// Returns the key of the list at which the weights, from the largest key on, reach `goal` > 0, or 0 if they do not.
static inline __device__ Key border_of_list(Team& team, BorderMemory& memory, unsigned long long goal) {
  team.once([&] { memory.answer = 0; });
  const auto& [keys, weights] = memory.list;
  team.for_each(memory.listed, [&](int i) {
    unsigned long long taken = 0;
    for (int j = 0; j < memory.listed; ++j) taken += keys[j] >= keys[i] ? weights[j] : 0;
    if (taken >= goal && taken - weights[i] < goal) memory.answer = keys[i];
  });
  return memory.answer;
}

static inline __device__ void add_to_bin(BorderMemory& memory, uint32_t bin, unsigned long long weight) {
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t before = atomicAdd(&memory.bins.low[bin], low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (before + low < before ? 1 : 0);
  if (high != 0) atomicAdd(&memory.bins.high[bin], high);
}
static inline __device__ unsigned long long in_bin(const BorderMemory& memory, int bin) {
  return memory.bins.low[bin] + (static_cast<unsigned long long>(memory.bins.high[bin]) << 32);
}

// Finds the bin in which the sum from the highest bin down reaches `goal`, and −1 if the bins have less. Called by the
// first warp.
static inline __device__ void find_bin(BorderMemory& memory, unsigned long long goal) {
  constexpr int kOwn = kBins / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto from_top = [&](int place) { return in_bin(memory, kBins - 1 - place); };
  unsigned long long own = 0;
  for (int i = 0; i < kOwn; ++i)
    own += from_top(lane * kOwn + (i + lane) % kOwn);  // each lane in a memory bank of its own
  unsigned long long up_to = sum_up_to_lane(own);
  unsigned reached = __ballot_sync(kWholeWarp, up_to >= goal);
  int bin = -1;
  unsigned long long taken = __shfl_sync(kWholeWarp, up_to, 31);
  if (reached != 0) {
    const int lanes = __ffs(static_cast<int>(reached)) - 1;
    taken = __shfl_sync(kWholeWarp, up_to - own, lanes);
    for (int place = lanes * kOwn; bin < 0; place += 32) {
      own = from_top(place + lane);
      up_to = sum_up_to_lane(own);
      reached = __ballot_sync(kWholeWarp, taken + up_to >= goal);
      const int first = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : 31;
      taken += __shfl_sync(kWholeWarp, reached != 0 ? up_to - own : up_to, first);
      if (reached != 0) bin = kBins - 1 - place - first;
    }
  }
  if (lane == 0) memory.bin = bin, memory.taken = taken;
}

namespace {

// Elements of a row: visit(f) calls f(key, value) for each of them, from all threads.
struct RowElements {
  const float* row;
  int n;
  template <class F>
  __device__ void visit(const F& f) const {
    sweep<false>(row, n, [&](int i, float x) { f(key_of(x, i), x); });
  }
};
// One element of each thread.
struct ThreadElements {
  float own;
  template <class F>
  __device__ void visit(const F& f) const {
    f(key_of(own, static_cast<int>(threadIdx.x)), own);
  }
};

}  // namespace

// Returns the smallest key such that the elements with this key or a larger one weigh at least `goal` > 0 together, or
// 0 if all of them weigh less. weight(value) is an integer that does not fall when the value rises. All keys lie
// between `lowest` and `end`, and ids are below n. Keys below `begin` are only looked at if the others do not reach the
// goal.
template <class Elements, class Weight>
static __device__ Key border_of(Team& team, BorderMemory& memory, const Elements& elements, int n, Key lowest,
                                Key begin, Key end, unsigned long long goal, const Weight& weight) {
  for (;;) {
    const int bits = end == begin ? 0 : 64 - __clzll(static_cast<long long>(end - begin)), shift = max(0, bits - 11);
    team.sync();  // all have read the bins of the range before
    team.for_each(kBins, [&](int bin) { memory.bins.low[bin] = memory.bins.high[bin] = 0; });
    elements.visit([&](Key key, float x) {
      if (key < begin || key > end) return;
      if (const unsigned long long w = weight(x); w != 0)
        add_to_bin(memory, static_cast<uint32_t>((key - begin) >> shift), w);
    });
    team.sync();
    if (threadIdx.x < 32) find_bin(memory, goal);
    team.sync();
    const int bin = memory.bin;
    if (bin < 0 && begin == lowest) return 0;
    goal -= memory.taken;
    if (bin < 0) {
      end = begin - 1, begin = lowest;
      continue;
    }
    const unsigned long long within = in_bin(memory, bin);
    begin += static_cast<Key>(bin) << shift;
    if (shift == 0) return begin;
    const Key last = begin + (Key{1} << shift) - 1;
    end = last < end ? last : end;
    if (begin >> 32 == end >> 32) {  // of one value: ids take the upper end of a key's lower half
      const Key least = key_of(value_of(begin), n - 1);
      begin = least > begin ? least : begin;
    }
    if (within > kMostCompared * weight(value_of(begin))) continue;
    Lister lister(team, memory);
    elements.visit([&](Key key, float x) {
      if (key >= begin && key <= end) lister.add(key, weight(x));
    });
    team.sync();
    if (memory.listed <= kMostListed) return border_of_list(team, memory, goal);
  }
}

}  // namespace specdec::kernels::cuda
