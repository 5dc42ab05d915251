// Conversions for products with block-quantised matrices: inputs to pairs of bytes, and scales to fp32. Part of impl.h:
// included once per instruction set, with SPECDEC_ISA and SPECDEC_LANES defined.
#include "engine/kernels/cpu/linear_int8.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

// Loads W fp16 numbers, which must be finite.
template <int W>
inline F<W> load_halves(const uint8_t* p) {
#if defined(__AVX512F__)
  if constexpr (W == 16) return (F<W>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#endif
#if defined(__F16C__)
  if constexpr (W == 8) return (F<W>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#endif
  typename Simd<W>::H half;
  __builtin_memcpy(&half, p, sizeof half);
  const auto bits = __builtin_convertvector(half, typename Simd<W>::U);
  const F<W> magnitude = (F<W>)((bits & 0x7fffu) << 13) * 0x1p112f;  // subnormal numbers become normal
  return (F<W>)((typename Simd<W>::U)magnitude | (bits & 0x8000u) << 16);
}

template <int W, class Byte>
inline F<W> load_bytes(const uint8_t* p) {
  typedef Byte Bytes __attribute__((vector_size(W)));
  Bytes bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  return __builtin_convertvector(__builtin_convertvector(bytes, I<W>), F<W>);
}

// Converts kBlockInputs inputs: scale = max |x| / 8191, and each value becomes 128 · high + low.
template <int W>
inline void split(const float* x, SplitInputs& out) {
  const int32_t most = largest_magnitude<W, kBlockInputs>(x);
  const float peak = float_of(static_cast<uint32_t>(most));
  const bool tiny = peak < 1e-30f;  // such inputs count as zero: the inverse of their scale could be infinite
  const float inverse = tiny ? 0.0f : 8191.0f / peak;
  const bool finite = most < 0x7f800000;
  const int32_t keep = finite ? -1 : 0;  // the values of a group that is not finite count as zero times NaN
  out.scale = !finite ? float_of(0x7fc00000u) : tiny ? 0.0f : peak / 8191.0f;
  I<W> sums[2] = {};
#pragma GCC unroll 8
  for (int64_t i = 0; i < kBlockInputs; i += W) {
    const I<W> q = round<W>(load<W>(x + i) * inverse) & keep, high = (q + 64) >> 7, low = q - (high << 7);
    sums[i * 2 / kBlockInputs] += q;
    const auto high_bytes = __builtin_convertvector(high, typename Simd<W>::Bytes),
               low_bytes = __builtin_convertvector(low, typename Simd<W>::Bytes);
    __builtin_memcpy(out.high + i, &high_bytes, sizeof high_bytes);
    __builtin_memcpy(out.low + i, &low_bytes, sizeof low_bytes);
  }
  for (int half = 0; half < 2; ++half) {
    int32_t total = 0;
    for (int i = 0; i < W; ++i) total += sums[half][i];
    out.sum[half] = total;
  }
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
