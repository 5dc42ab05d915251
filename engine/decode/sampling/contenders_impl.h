// The search for contenders with one instruction set. Included once per instruction set, with SPECDEC_ISA (its
// namespace) and SPECDEC_LANES (floats per vector) defined, as the CPU kernels are (engine/kernels/cpu/impl.h). All
// functions and types are local to the file, because the linker could merge inline functions, compiled for a newer CPU,
// into code that must run on an older CPU.
#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/philox.h"
#include "engine/decode/sampling/contenders.h"

namespace specdec::decode::SPECDEC_ISA {

namespace {

constexpr size_t kLanes = SPECDEC_LANES, kGroup = kContenderGroup, kVectors = 4;
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint64_t Words __attribute__((vector_size(4 * kLanes)));

// Multiplies the lower halves of lanes. GCC does not see that one instruction does it.
struct Product {
  Words operator()(Words words, uint32_t factor) const {
#if defined(__AVX512F__)  // the version without a mask makes GCC 12 warn about its own header
    return (Words)_mm512_maskz_mul_epu32(0xff, (__m512i)words, _mm512_set1_epi64(factor));
#elif defined(__AVX2__)
    return (Words)_mm256_mul_epu32((__m256i)words, _mm256_set1_epi64x(factor));
#elif defined(__SSE2__)
    return (Words)_mm_mul_epu32((__m128i)words, _mm_set1_epi64x(factor));
#elif defined(__ARM_NEON) && defined(__aarch64__)
    return (Words)vmull_u32(vmovn_u64((uint64x2_t)words), vdup_n_u32(factor));
#else
    return (words & 0xffffffff) * factor;
#endif
  }
};

// Returns one bit per lane, from comparisons whose lanes are 0 or −1.
inline uint32_t bits_of(Ints lanes) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask((__m512i)lanes);
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)lanes));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)lanes));
#else
  uint32_t bits = 0;
  for (size_t i = 0; i < kLanes; ++i) bits |= static_cast<uint32_t>(lanes[i] & 1) << i;
  return bits;
#endif
}

inline Floats load(const float* p) {
  Floats v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

// Sets k to half of 2^32 − 1 − r, rounded down, where r is the first number of Philox, for the ids from `first` on.
// Words have half as many lanes as k, so one vector computes the even ids and one the odd ids. The vectors take turns,
// because a product takes several cycles.
inline void half_distances(const Race& race, size_t first, Ints (&k)[kVectors / 2]) {
  Words lane;
  for (size_t i = 0; i < kLanes / 2; ++i) lane[i] = 2 * i;
  Words counters[kVectors][4];
  for (size_t i = 0; i < kVectors; ++i) {
    counters[i][0] = lane + (first + i / 2 * kLanes + i % 2), counters[i][1] = Words{};
    counters[i][2] = Words{} + race.stream, counters[i][3] = Words{} + (race.stream >> 32);
  }
  PhiloxKey key = {static_cast<uint32_t>(race.seed), static_cast<uint32_t>(race.seed >> 32)};
#pragma GCC unroll 10
  for (int round = 0; round < kPhiloxRounds; ++round, key.next()) {
#pragma GCC unroll 4
    for (size_t i = 0; i < kVectors; ++i) philox_round(counters[i], key, Product{});
  }
  for (size_t i = 0; i < kVectors / 2; ++i) {
    const Words numbers = (counters[2 * i][0] & 0xffffffff) | counters[2 * i + 1][0] << 32;
    k[i] = (Ints)~numbers >> 1 & 0x7fffffff;
  }
}

// Returns the members of the group of ids from `first` on, whose weights are at `weights`. `bound` is best · 2^31.
//
// With r the first number of Philox and k the half distance, u <= (r + 1) / 2^32 (also after u was rounded to fp64), so
// −log u >= 1 − u >= k / 2^31. An id with k > best · 2^31 · w therefore arrives after `best`. The bound has an excess
// of 1 + 2^-20, which outweighs that the bound, its product with w and k are rounded to fp32, by 2^-24 each, and that
// the exact time is rounded to fp64. Where the product is subnormal or becomes 0, k = 0 is the only one that is not
// above it, as with the true product, which is below 1, too. With an infinite bound, every id with a positive weight is
// a member. Zero times infinity is no member, and neither is a weight that is NaN.
inline uint32_t members(const Race& race, size_t first, const float* weights, float bound) {
  uint32_t positive = 0, near = 0;
  for (size_t i = 0; i < kGroup; i += kLanes) positive |= bits_of(load(weights + i) > 0.0f) << i;
  if (positive == 0) return 0;  // top-k and top-p leave most groups without weight
  for (size_t i = 0; i < kGroup; i += kVectors / 2 * kLanes) {
    Ints k[kVectors / 2];
    half_distances(race, first + i, k);
    for (size_t j = 0; j < kVectors / 2; ++j) {
      const size_t at = i + j * kLanes;
      near |= bits_of(__builtin_convertvector(k[j], Floats) <= load(weights + at) * bound) << at;
    }
  }
  return positive & near;
}

Contenders next(const Race& race, size_t from, double best) {
  constexpr float kLargest = __FLT_MAX__, kSmallest = __FLT_MIN__;  // a subnormal bound would be rounded too coarsely
  const double wanted = best * (0x1p31 * (1 + 0x1p-20));
  const float bound = wanted > kLargest    ? __builtin_inff()
                      : wanted < kSmallest ? kSmallest
                                           : static_cast<float>(wanted);
  size_t first = from;
  for (; first + kGroup <= race.ids; first += kGroup)
    if (const uint32_t found = members(race, first, race.weights + first, bound)) return {first, found};
  if (first >= race.ids) return {first, 0};
  float rest[kGroup] = {};
  for (size_t i = first; i < race.ids; ++i) rest[i - first] = race.weights[i];
  const uint32_t found = members(race, first, rest, bound);
  return {found != 0 ? first : race.ids, found};
}

#define SPECDEC_TEXT2(x) #x
#define SPECDEC_TEXT(x) SPECDEC_TEXT2(x)
constexpr ContenderSearch kSearch = {SPECDEC_TEXT(SPECDEC_ISA), next};

}  // namespace

const ContenderSearch& search();
const ContenderSearch& search() { return kSearch; }

}  // namespace specdec::decode::SPECDEC_ISA
