// Products with int8 matrices for few rows. Part of impl.h: included once per instruction set, with SPECDEC_ISA and
// SPECDEC_LANES defined. Converting every weight to fp32 would take longer than reading the weights. So the inputs are
// converted to int16 instead, and each lane multiplies two weights by two inputs and adds both products (vpmaddwd).
// Sums within a group are exact integers, so the order of their additions does not matter.
#include "engine/kernels/cpu/linear_packed.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

template <int W>
using I = typename Simd<W>::I;

// Loads W pairs of int8 as pairs of int16.
template <int W>
inline I<W> load_pairs(const Int8* p) {
#if defined(__AVX2__)
  if constexpr (W == 8) return (I<W>)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
#if defined(__AVX512BW__)
  if constexpr (W == 16)
    return (I<W>)_mm512_maskz_cvtepi8_epi16(0xffffffffu, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#endif
  typename Simd<W>::BytePairs bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return (I<W>)__builtin_convertvector(bytes, typename Simd<W>::Pairs);
}

// Multiplies pairs of int16 and returns, in each lane, the sum of the two products.
template <int W>
inline I<W> multiply_pairs(I<W> a, I<W> b) {
#if defined(__AVX2__)
  if constexpr (W == 8) return (I<W>)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#endif
#if defined(__AVX512BW__)
  if constexpr (W == 16) return (I<W>)_mm512_maskz_madd_epi16(0xffff, (__m512i)a, (__m512i)b);
#endif
#if defined(__SSE2__)
  if constexpr (W == 4) return (I<W>)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
  return (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
}

template <int W>
inline I<W> broadcast_pair(const int16_t* p) {
  int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return pair + I<W>{};
}

inline float float_of(uint32_t bits) {
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}

// Returns the bits of the largest |x| of N inputs, which order like the values; infinity and NaN come last.
template <int W, int64_t N>
inline int32_t largest_magnitude(const float* x) {
  I<W> largest = {};
#pragma GCC unroll 16
  for (int64_t i = 0; i < N; i += W) {
    const I<W> magnitude = (I<W>)load<W>(x + i) & 0x7fffffff;
    largest = magnitude > largest ? magnitude : largest;
  }
  int32_t most = 0;
  for (int i = 0; i < W; ++i) most = largest[i] > most ? largest[i] : most;
  return most;
}

// Converts n ≤ kPackGroup inputs to fixed point and fills the rest of the group with zeros. The scale is 2^(e - 15) for
// the smallest e such that every |x| < 2^e. Values that would round to 2^15 become 2^15 - 1.
template <int W>
inline void fix(const float* x, int64_t n, FixedInputs& out) {
  constexpr int32_t kInfinite = 0x7f800000;
  alignas(64) float padded[kPackGroup] = {};
  if (n < kPackGroup) {
    for (int64_t i = 0; i < n; ++i) padded[i] = x[i];
    x = padded;
  }
  const int32_t most = largest_magnitude<W, kPackGroup>(x);
  // The biased exponent of 2^(e - 1), but at least 16, so that the scale of a tiny group is still a normal number.
  const int32_t exponent = most >> 23 < 16 ? 16 : most >> 23;
  out.scale = float_of(most >= kInfinite ? 0x7fc00000u : static_cast<uint32_t>(exponent - 14) << 23);
  const float inverse = float_of(static_cast<uint32_t>(254 - (exponent - 14)) << 23);
#pragma GCC unroll 16
  for (int64_t i = 0; i < kPackGroup; i += W) {
    I<W> q = round<W>(load<W>(x + i) * inverse);
    q = q > 0x7fff ? I<W>{} + 0x7fff : q;
    const auto narrow = __builtin_convertvector(q, typename Simd<W>::S);
    __builtin_memcpy(out.value + i, &narrow, sizeof narrow);
  }
}

// Adds one group's sums to the totals, for V vectors of outputs and M rows. If M > 1, prefetches `next`, one cache line
// per pair of inputs; `next` is the group two positions ahead, or null.
template <int W, int V, int M>
__attribute__((noinline)) void add_fixed(const Int8* values, const float* scales, const FixedInputs* x, int64_t ldx,
                                         const char* next, float* totals) {
  I<W> sums[V][M] = {};
#pragma GCC unroll 2
  for (int64_t k = 0; k < kPackGroup; k += 2) {
    if constexpr (M > 1) {
      if (next) __builtin_prefetch(next + k * kPackOutputs, 0, 2);
    }
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const I<W> w = load_pairs<W>(values + k * kPackOutputs + 2 * v * W);
#pragma GCC unroll 8
      for (int j = 0; j < M; ++j) sums[v][j] += multiply_pairs<W>(w, broadcast_pair<W>(x[j * ldx].value + k));
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
#pragma GCC unroll 8
    for (int j = 0; j < M; ++j) {
      float* total = totals + j * kPackOutputs + v * W;
      store<W>(total, fma(__builtin_convertvector(sums[v][j], F<W>), load<W>(scales + v * W) * x[j * ldx].scale,
                          load<W>(total)));
    }
  }
}

template <int W, int V, int M>
inline void add_fixed_columns(const Int8* values, const float* scales, const FixedInputs* x, int64_t ldx,
                              const char* next, int64_t begin, int64_t end, float* totals) {
  constexpr int64_t kStep = V * W;
  for (int64_t at = begin - begin % kStep; at < end; at += kStep)
    add_fixed<W, V, M>(values + 2 * at, scales + at, x, ldx, at < kStep ? next : nullptr, totals + at);
}

// Computes the outputs of the block that begins with output n, for all rows.
template <int W, class B>
inline void int8_block(const LinearCall<Int8, B>& c, const char* from, int64_t n) {
  alignas(64) float totals[kFixedRows * kPackOutputs], scales[kPackOutputs];
  alignas(64) Int8 values[kPackGroup * kPackOutputs];
  const auto [width, begin, end] = block_at(c, n);
  const int64_t groups = fixed_groups(c.k);
  constexpr int kVectors = kPackOutputs / W < 4 ? kPackOutputs / W : 4, kPair = kVectors / 2;
  for (int64_t i = 0; i < c.rows * kPackOutputs; ++i) totals[i] = 0;
  for (int64_t g = 0; g < groups; ++g, from += pack_group_bytes(c.w, kPackGroup, width)) {
    const Int8* w = reinterpret_cast<const Int8*>(from + pack_scale_bytes(c.w, width));
    const float* scale = reinterpret_cast<const float*>(from);
    if (width < kPackOutputs) {  // pads the last block, if narrower, with zeros
      for (int64_t k = 0; k < kPackGroup; k += 2) {
        for (int64_t at = 0; at < 2 * kPackOutputs; ++at)
          values[k * kPackOutputs + at].value = at < 2 * width ? w[k * width + at].value : int8_t{0};
      }
      for (int64_t at = 0; at < kPackOutputs; ++at) scales[at] = at < width ? scale[at] : 0;
      w = values, scale = scales;
    }
    const char* next = c.rows > 1 ? from + 2 * pack_group_bytes(c.w, kPackGroup, width) : nullptr;
    for (int64_t r = 0; r < c.rows; next = nullptr) {
      const int64_t left = c.rows - r, m = left < 4 ? left : 4;
      const FixedInputs* x = c.fixed + r * groups + g;
      float* to = totals + r * kPackOutputs;
      if (m == 1) add_fixed_columns<W, kVectors, 1>(w, scale, x, groups, next, begin, end, to);
      if (m == 2) add_fixed_columns<W, kVectors, 2>(w, scale, x, groups, next, begin, end, to);
      if (m == 3) add_fixed_columns<W, kPair, 3>(w, scale, x, groups, next, begin, end, to);
      if (m == 4) add_fixed_columns<W, kPair, 4>(w, scale, x, groups, next, begin, end, to);
      r += m;
    }
  }
  finish_block<W>(c, totals, begin, end, n, 0, c.rows);
}

template <int W, class B>
void linear_int8(const LinearCall<Int8, B>& c) {
  const int64_t groups = fixed_groups(c.k);
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * kPackGroup, inputs = c.k - first < kPackGroup ? c.k - first : kPackGroup;
      fix<W>(c.x + r * c.ldx + first, inputs, c.fixed[r * groups + g]);
    }
  }
  const char* w = reinterpret_cast<const char*>(c.w);
  for (int64_t n = c.n_begin - c.n_begin % kPackOutputs; n < c.n_end; n += kPackOutputs)
    int8_block<W>(c, w + n * pack_row_bytes(c.w, c.k), n);
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
