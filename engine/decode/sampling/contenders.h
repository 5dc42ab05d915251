// Finds the few ids that can win the race of SeededRandomness::draw_at(), several ids at a time. There is one variant
// for each instruction set. All of them find the same ids: Philox has integers only, and no sum or difference of
// floating-point numbers could be fused with a product.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specdec::decode {

// The ids that race: each id x with a positive weight arrives at the time −log u / weight, where u is element x of the
// random-number stream (base/philox.h). The first to arrive wins.
struct Race {
  uint64_t seed, stream;
  const float* weights;
  size_t ids;  // below 2^32
};

// Some ids of a group: first + i for each set bit i.
inline constexpr size_t kContenderGroup = 32;
struct Contenders {
  size_t first;
  uint32_t members;
};

struct ContenderSearch {
  const char* name;  // name of the instruction set
  // Returns the contenders of the first group of ids that has any. `from`, a multiple of kContenderGroup, is the first
  // id of the first group. An id with a positive weight is left out only if its exact time, also when it is computed in
  // fp64, is later than `best` (>= 0, may be infinite). Without contenders, `first` is at least race.ids.
  Contenders (*next)(const Race& race, size_t from, double best);
};

// Returns the search for the best instruction set of this machine.
const ContenderSearch& contender_search();
// Fills `out` with the searches of all instruction sets that this machine supports, best first, and returns their
// number. Tests compare them.
inline constexpr int kContenderSearches = 3;
int contender_searches(const ContenderSearch* out[kContenderSearches]);

}  // namespace specdec::decode
