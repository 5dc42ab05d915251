#include "engine/decode/randomness.h"

#include "engine/decode/sampler.h"

namespace specdec::decode {

SeededRandomness::SeededRandomness(uint64_t seed) : streams_{{seed, 0}, {seed, 1}, {seed, 2}, {seed, 3}} {}

int32_t SeededRandomness::draw(Purpose purpose, std::span<const float> weights) {
  return decode::draw(weights, streams_[static_cast<int>(purpose)].uniform());
}

bool SeededRandomness::accept(Purpose purpose, double probability) {
  return streams_[static_cast<int>(purpose)].uniform() < probability;
}

}  // namespace specdec::decode
