// Philox4x32-10 (Salmon et al., SC'11): counter-based random numbers that are the same on every machine, in whatever
// order they are drawn. A stream is keyed by (seed, stream id), and element n of a stream needs no state except n.
#pragma once

#include <array>
#include <cstdint>

#include "base/device_code.h"

namespace specdec {

// The key of a round. It changes from round to round (a Weyl sequence).
struct PhiloxKey {
  uint32_t low, high;
  SPECDEC_ANY_CODE void next() { low += 0x9E3779B9u, high += 0xBB67AE85u; }
};

struct PhiloxProduct {
  SPECDEC_ANY_CODE uint64_t operator()(uint32_t word, uint32_t factor) const {
    return static_cast<uint64_t>(factor) * word;
  }
};

// Computes one round. product(word, factor) returns the 64-bit product of two 32-bit numbers. Words is uint32_t, or a
// vector of 64-bit lanes, which computes one block per lane: its numbers are the lower halves of the lanes, and the
// upper halves have no meaning, before and after.
template <class Words, class Product>
inline SPECDEC_ANY_CODE void philox_round(Words (&counter)[4], PhiloxKey key, Product product) {
  const auto a = product(counter[0], 0xD2511F53u), b = product(counter[2], 0xCD9E8D57u);
  const Words first = static_cast<Words>(b >> 32) ^ counter[1] ^ key.low,
              third = static_cast<Words>(a >> 32) ^ counter[3] ^ key.high;
  counter[0] = first, counter[1] = static_cast<Words>(b);
  counter[2] = third, counter[3] = static_cast<Words>(a);
}
inline constexpr int kPhiloxRounds = 10;

// Replaces `counter` by the four random numbers that Philox computes from it and `key`.
inline SPECDEC_ANY_CODE void philox_rounds(uint32_t (&counter)[4], PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round, key.next()) philox_round(counter, key, PhiloxProduct{});
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
