// Finds the border of top-k and top-p in a row: the smallest element that is kept. Elements are compared by their keys:
// a larger value has a larger key, and of equal values the lower id has the larger key. The search divides a range of
// keys into bins, sums the weights in each bin, and continues with the bin in which the sum from the top reaches its
// goal. When few elements are left, they are compared with each other.
//
// All sums are integers, so they do not depend on the order of the threads. Each sum is two counters of 32 bits,
// because GPUs have an instruction that adds 32 bits in shared memory; an addition of 64 bits would be a loop of
// compare-and-swap.
#pragma once

#include "engine/kernels/cuda/block_team.h"

namespace specdec::kernels::cuda {

using Key = unsigned long long;
constexpr int kBins = 2048;
constexpr int kMostListed = 512;
constexpr int kMostCompared = 128;  // at most this many elements are compared with each other

struct BorderMemory {
  union {
    struct {
      uint32_t low[kBins], high[kBins];  // the halves of the sum in each bin
    } bins;
    struct {
      Key keys[kMostListed];
      unsigned long long weights[kMostListed];
    } list;
  };
  unsigned long long taken;  // the sum of the bins above the bin that find_bin() found, or of all bins if it found none
  Key answer;
  int32_t bin;     // which find_bin() found, or −1
  int32_t listed;  // elements in the list; above kMostListed, some elements are missing in it
};

struct NoChoices {};
using Team = BlockTeam<NoChoices>;

static inline __device__ Key key_of(float value, int id) {
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));  // turns −0 into 0
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<Key>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
static inline __device__ float value_of(Key key) {
  const auto ordered = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered);
}
static inline __device__ int id_of(Key key) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key)); }

namespace {  // because tests link files that include this header in different versions

// Adds elements to the list, which the constructor empties. All threads of the block construct it together. A thread
// that adds far more elements than its share marks the list as incomplete instead of adding the rest to the counter.
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

// Returns the largest key of the list such that the elements with this key or a larger one weigh at least `goal` > 0
// together, or 0 if all of them weigh less.
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

// Finds the bin in which the sum from the highest bin down reaches `goal`, and sets `bin` and `taken`. Called by the
// first warp of the block.
static inline __device__ void find_bin(BorderMemory& memory, unsigned long long goal) {
  constexpr int kOwn = kBins / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto from_top = [&](int place) { return in_bin(memory, kBins - 1 - place); };
  unsigned long long own = 0;
  for (int i = 0; i < kOwn; ++i)
    own += from_top(lane * kOwn + (i + lane) % kOwn);  // no two lanes read the same memory bank
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

// The elements of a row. visit(f) calls f(key, value) for each element; the threads of the block divide them.
struct RowElements {
  const float* row;
  int n;
  template <class F>
  __device__ void visit(const F& f) const {
    sweep<false>(row, n, [&](int i, float x) { f(key_of(x, i), x); });
  }
};
// One element per thread, whose id is the thread's index.
struct ThreadElements {
  float own;
  template <class F>
  __device__ void visit(const F& f) const {
    f(key_of(own, static_cast<int>(threadIdx.x)), own);
  }
};

}  // namespace

// Returns the largest key such that the elements with this key or a larger one weigh at least `goal` > 0 together, or
// 0 if all of them weigh less. weight(value) is an integer that does not fall when the value rises. All keys lie
// between `lowest` and `end`, and ids are below n. Keys below `begin` are only looked at if the others do not reach the
// goal.
template <class Elements, class Weight>
static __device__ Key border_of(Team& team, BorderMemory& memory, const Elements& elements, int n, Key lowest,
                                Key begin, Key end, unsigned long long goal, const Weight& weight) {
  for (;;) {
    const int bits = end == begin ? 0 : 64 - __clzll(static_cast<long long>(end - begin)), shift = max(0, bits - 11);
    team.sync();  // all threads have read the bins of the previous range
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
    if (begin >> 32 == end >> 32) {  // one value is left; its ids are at the upper end of the range
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
