// Philox4x32-10 (Salmon et al., SC'11): counter-based random numbers that are the same on every machine, in whatever
// order they are drawn. A stream is keyed by (seed, stream id), and element n of a stream needs no state except n.
#pragma once

#include <array>
#include <cstdint>

#include "base/device_code.h"

namespace specdec {

// Replaces `counter` by the four random numbers that Philox computes from it and `key`.
inline SPECDEC_ANY_CODE void philox_rounds(uint32_t (&counter)[4], const uint32_t (&key)[2]) {
  uint32_t low = key[0], high = key[1];
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * counter[0], b = 0xCD9E8D57ull * counter[2];
    const uint32_t first = static_cast<uint32_t>(b >> 32) ^ counter[1] ^ low,
                   third = static_cast<uint32_t>(a >> 32) ^ counter[3] ^ high;
    counter[0] = first, counter[1] = static_cast<uint32_t>(b);
    counter[2] = third, counter[3] = static_cast<uint32_t>(a);
    low += 0x9E3779B9u, high += 0xBB67AE85u;
  }
}

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  uint32_t block[4] = {counter[0], counter[1], counter[2], counter[3]};
  philox_rounds(block, {key[0], key[1]});
  return {block[0], block[1], block[2], block[3]};
}

// Returns element `index` of the random-number stream `stream` for `seed`, uniform in the open interval (0, 1) with 53
// bits.
inline SPECDEC_ANY_CODE double philox_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t r[4] = {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), static_cast<uint32_t>(stream),
                   static_cast<uint32_t>(stream >> 32)};
  philox_rounds(r, {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = ((static_cast<uint64_t>(r[0]) << 32) | r[1]) >> 11;
  return (static_cast<double>(bits) + 0.5) * 0x1.0p-53;
}

// Returns the random numbers of one stream one after the other. It is deliberately no UniformRandomBitGenerator,
// because std:: distributions differ by library.
class PhiloxStream {
 public:
  PhiloxStream(uint64_t seed, uint64_t stream, uint64_t index = 0) : seed_(seed), stream_(stream), index_(index) {}
  double uniform() { return philox_uniform(seed_, stream_, index_++); }
  // Returns a number in [0, n), n < 2^52.
  uint64_t below(uint64_t n) { return static_cast<uint64_t>(uniform() * static_cast<double>(n)); }
  uint64_t index() const { return index_; }

 private:
  uint64_t seed_, stream_, index_;
};

}  // namespace specdec
