// Vector types and their arithmetic. Part of impl.h: included once per instruction set, with SPECDEC_ISA and
// SPECDEC_LANES defined.
#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "engine/kernels/cpu/cpu.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

template <int W>
struct Simd {
  typedef float F __attribute__((vector_size(4 * W)));
  typedef int32_t I __attribute__((vector_size(4 * W)));
  typedef uint32_t U __attribute__((vector_size(4 * W)));
  typedef uint16_t H __attribute__((vector_size(2 * W)));
  typedef int16_t S __attribute__((vector_size(2 * W)));
  typedef int16_t Pairs __attribute__((vector_size(4 * W)));
  typedef int8_t BytePairs __attribute__((vector_size(2 * W)));
  typedef int8_t Bytes __attribute__((vector_size(W)));
};
template <int W>
using F = typename Simd<W>::F;

template <int W>
inline F<W> load(const float* p) {
  F<W> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <int W>
inline F<W> load(const Bf16* p) {
#if defined(__AVX2__)  // otherwise the compiler converts the 8 integers in two halves
  if constexpr (W == 8)
    return (F<W>)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16);
#endif
  typename Simd<W>::H h;
  __builtin_memcpy(&h, p, sizeof h);
  return (F<W>)(__builtin_convertvector(h, typename Simd<W>::U) << 16);
}
template <int W>
inline void store(float* p, F<W> v) {
  __builtin_memcpy(p, &v, sizeof v);
}
inline float widen_one(float x) { return x; }
inline float widen_one(Bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float f;
  __builtin_memcpy(&f, &bits, sizeof f);
  return f;
}
// Loads n < W elements; the remaining lanes are zero.
template <int W, class T>
inline F<W> load_part(const T* p, int64_t n) {
  float lanes[W] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = widen_one(p[i]);
  return load<W>(lanes);
}

// Returns a · b + c, rounded once if the instruction set has a fused multiply-add. The fusion is explicit, so that
// every tile shape rounds in the same way.
inline F<4> fma(F<4> a, F<4> b, F<4> c) {
#if defined(__FMA__)
  return _mm_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
#if defined(__FMA__)
inline F<8> fma(F<8> a, F<8> b, F<8> c) { return _mm256_fmadd_ps(a, b, c); }
#endif
#if defined(__AVX512F__)
inline F<16> fma(F<16> a, F<16> b, F<16> c) { return _mm512_fmadd_ps(a, b, c); }
#endif

template <int W>
inline F<W> broadcast(float x) {
  return x - F<W>{};  // not +, because −0 + 0 is +0, so the compiler could not remove the operation
}
#if SPECDEC_LANES >= 8
inline F<4> fold(F<8> v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
#endif
#if SPECDEC_LANES >= 16
inline F<8> fold(F<16> v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
         __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif

// Returns, for each of four vectors, the sum over its lanes. All four are added in the same order.
inline F<4> sum4(F<4> a, F<4> b, F<4> c, F<4> d) {
  const F<4> ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const F<4> cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}
#if SPECDEC_LANES >= 8
inline F<4> sum4(F<8> a, F<8> b, F<8> c, F<8> d) {
  const F<8> ab = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) +
                  __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  const F<8> cd = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13) +
                  __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
  return fold(__builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) +
              __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15));
}
#endif
#if SPECDEC_LANES >= 16
inline F<4> sum4(F<16> a, F<16> b, F<16> c, F<16> d) { return sum4(fold(a), fold(b), fold(c), fold(d)); }
#endif
template <int W>
inline float sum(F<W> v) {
  return sum4(v, F<W>{}, F<W>{}, F<W>{})[0];
}

// Rounds to the nearest integer, with ties to even, for |x| < 2^31.
template <int W>
inline typename Simd<W>::I round(F<W> x) {
#if defined(__SSE2__)
  if constexpr (W == 4) return (typename Simd<W>::I)_mm_cvtps_epi32(x);
#endif
#if defined(__AVX2__)
  if constexpr (W == 8) return (typename Simd<W>::I)_mm256_cvtps_epi32(x);
#endif
#if defined(__AVX512F__)
  if constexpr (W == 16) return (typename Simd<W>::I)_mm512_cvtps_epi32(x);
#endif
  typename Simd<W>::I out;
  for (int i = 0; i < W; ++i) out[i] = static_cast<int32_t>(__builtin_rintf(x[i]));
  return out;
}

// Keeps the last n lanes of v and sets the others to zero. If v holds the last W elements of a row, the kept lanes are
// the n elements that are not counted yet.
template <int W>
inline F<W> keep_last(F<W> v, int64_t n) {
  typename Simd<W>::I lane;
  for (int i = 0; i < W; ++i) lane[i] = i;
  return (F<W>)((typename Simd<W>::I)v & (lane >= static_cast<int32_t>(W - n)));
}

// Returns e^x with relative error 2e-7 for |x| < 87; beyond about ±88, x is clamped (as Cephes expf: ln 2 in two parts,
// a polynomial of degree 5).
template <int W>
inline F<W> exp(F<W> x) {
  x = x > 88.37f ? broadcast<W>(88.37f) : x;
  x = x < -87.33f ? broadcast<W>(-87.33f) : x;
  const F<W> shifted = x * 1.44269504f + 12582912.0f;  // 1.5 · 2^23 moves the rounded integer into the low bits
  const F<W> n = shifted - 12582912.0f;
  const F<W> r = fma(n, broadcast<W>(2.12194440e-4f), fma(n, broadcast<W>(-0.693359375f), x));
  F<W> p = broadcast<W>(1.9875691500e-4f);
  p = fma(p, r, broadcast<W>(1.3981999507e-3f));
  p = fma(p, r, broadcast<W>(8.3334519073e-3f));
  p = fma(p, r, broadcast<W>(4.1665795894e-2f));
  p = fma(p, r, broadcast<W>(1.6666665459e-1f));
  p = fma(p, r, broadcast<W>(5.0000001201e-1f));
  const F<W> y = fma(p * r, r, r) + 1.0f;
  typedef typename Simd<W>::U U;
  return (F<W>)((U)y + ((U)shifted << 23));
}

// Returns tanh x with relative error 3e-7 (Cephes tanhf). Near 0 it uses an odd polynomial, because 1 - 2 / (e^2x + 1)
// would lose digits by cancellation.
template <int W>
inline F<W> tanh(F<W> x) {
  typedef typename Simd<W>::U U;
  const F<W> magnitude = (F<W>)((U)x & 0x7fffffffu), square = x * x;
  const F<W> far = 1.0f - 2.0f / (exp<W>(magnitude + magnitude) + 1.0f);
  F<W> p = broadcast<W>(-5.70498872745e-3f);
  p = fma(p, square, broadcast<W>(2.06390887954e-2f));
  p = fma(p, square, broadcast<W>(-5.37397155531e-2f));
  p = fma(p, square, broadcast<W>(1.33314422036e-1f));
  p = fma(p, square, broadcast<W>(-3.33332819422e-1f));
  const F<W> near = fma(p * square, x, x), signed_far = (F<W>)((U)far | ((U)x & 0x80000000u));
  return magnitude < 0.625f ? near : signed_far;
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
