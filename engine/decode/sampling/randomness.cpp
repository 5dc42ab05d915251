#include "engine/decode/sampling/randomness.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "engine/decode/sampling/contenders.h"
#include "engine/decode/sampling/sampler.h"

namespace specdec::decode {

SeededRandomness::SeededRandomness(uint64_t seed) : seed_(seed), streams_{{seed, 0}, {seed, 1}, {seed, 2}, {seed, 3}} {}

int32_t SeededRandomness::draw(Purpose purpose, std::span<const float> weights) {
  return decode::draw(weights, streams_[static_cast<int>(purpose)].uniform());
}

bool SeededRandomness::accept(Purpose purpose, double probability) {
  return streams_[static_cast<int>(purpose)].uniform() < probability;
}

std::array<uint64_t, 4> SeededRandomness::cursors() const {
  return {streams_[0].index(), streams_[1].index(), streams_[2].index(), streams_[3].index()};
}

void SeededRandomness::set_cursors(const std::array<uint64_t, 4>& cursors) {
  for (uint64_t i = 0; i < cursors.size(); ++i) streams_[i] = {seed_, i, cursors[i]};
}

int32_t SeededRandomness::draw_at(int64_t position, std::span<const float> weights) {
  constexpr uint64_t kFirst = 4;  // streams 0 to 3 belong to the four purposes, stream 4 + i to text position i
  const Race race = {seed_, kFirst + static_cast<uint64_t>(position), weights.data(), weights.size()};
  const ContenderSearch& search = contender_search();
  double best = std::numeric_limits<double>::infinity();
  int32_t id = -1;
  for (size_t from = 0; from < weights.size(); from += kContenderGroup) {
    const Contenders found = search.next(race, from, best);
    from = found.first;
    for (uint32_t left = found.members; left != 0; left &= left - 1) {
      const size_t x = from + static_cast<size_t>(std::countr_zero(left));
      const double w = weights[x], u = philox_uniform(seed_, race.stream, x);
      // The score of this id cannot be below `best`, because −log u >= 1 − u >= best · w.
      if (u <= 1 - best * w) continue;
      const double score = -std::log(u) / w;
      if (score < best) best = score, id = static_cast<int32_t>(x);
    }
  }
  if (id < 0) throw Error(ErrorKind::kInternal, "nothing to draw from: no weight is positive");
  return id;
}

}  // namespace specdec::decode
