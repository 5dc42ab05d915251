// Included once per instruction set with SPECDEC_ISA (its namespace) and SPECDEC_LANES (floats of a vector) defined.
// Vectors are the compiler's own (GCC, clang), so one source serves every set. Nothing of the standard library is used here:
// its inline functions, compiled for a newer CPU, could be merged into code that must run on an older one.
#include <cstdint>
#if defined(__AVX2__)
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
// The first n < W elements, zero beyond.
template <int W, class T>
inline F<W> load_part(const T* p, int64_t n) {
  float lanes[W] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i] = widen_one(p[i]);
  return load<W>(lanes);
}

// a · b + c with one rounding where the set has it: explicit, so that every tile shape rounds alike.
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
  return F<W>{} + x;
}
#if SPECDEC_LANES >= 8
inline F<4> fold(F<8> v) { return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7); }
#endif
#if SPECDEC_LANES >= 16
inline F<8> fold(F<16> v) {
  return __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
}
#endif

// The sums over the lanes of four vectors; the same tree for each of them.
inline F<4> sum4(F<4> a, F<4> b, F<4> c, F<4> d) {
  const F<4> ab = __builtin_shufflevector(a, b, 0, 4, 1, 5) + __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const F<4> cd = __builtin_shufflevector(c, d, 0, 4, 1, 5) + __builtin_shufflevector(c, d, 2, 6, 3, 7);
  return __builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7);
}
#if SPECDEC_LANES >= 8
inline F<4> sum4(F<8> a, F<8> b, F<8> c, F<8> d) {
  const F<8> ab = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13) + __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  const F<8> cd = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13) + __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
  return fold(__builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13) + __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15));
}
#endif
#if SPECDEC_LANES >= 16
inline F<4> sum4(F<16> a, F<16> b, F<16> c, F<16> d) { return sum4(fold(a), fold(b), fold(c), fold(d)); }
#endif
template <int W>
inline float sum(F<W> v) {
  return sum4(v, F<W>{}, F<W>{}, F<W>{})[0];
}

// Lanes W - n … W - 1 of a vector loaded from the last W elements: those not seen yet when n elements remain.
template <int W>
inline F<W> keep_last(F<W> v, int64_t n) {
  typename Simd<W>::I lane;
  for (int i = 0; i < W; ++i) lane[i] = i;
  return (F<W>)((typename Simd<W>::I)v & (lane >= static_cast<int32_t>(W - n)));
}

// e^x, relative error 2e-7 for |x| < 87, clamped beyond (Cephes expf: ln 2 in two parts, polynomial of degree 5).
template <int W>
inline F<W> exp(F<W> x) {
  x = x > 88.37f ? broadcast<W>(88.37f) : x;
  x = x < -87.33f ? broadcast<W>(-87.33f) : x;
  const F<W> shifted = x * 1.44269504f + 12582912.0f;  // 1.5 · 2^23: the integer part lands in the low mantissa bits
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

// ---- linear ----

// One accumulator per output, so any tile shape gives the same sums.
template <int W, int N, int M, class T>
inline void tile(const LinearCall<T>& c, int64_t m, int64_t n) {
  F<W> acc[N][M] = {};
  const float* x = c.x + m * c.ldx;
  const T* w = c.w + n * c.k;
  const int64_t whole = c.k - c.k % W, rest = c.k - whole;
  for (int64_t k = 0; k < whole; k += W) {
    F<W> xs[M];
#pragma GCC unroll 8
    for (int j = 0; j < M; ++j) xs[j] = load<W>(x + j * c.ldx + k);
#pragma GCC unroll 8
    for (int i = 0; i < N; ++i) {
      const F<W> ws = load<W>(w + i * c.k + k);
#pragma GCC unroll 8
      for (int j = 0; j < M; ++j) acc[i][j] = fma(ws, xs[j], acc[i][j]);
    }
  }
  if (rest != 0) {
    // Reading the last W elements again is cheaper than a partial load; those seen already count as zero.
    const bool again = c.k >= W;
    for (int j = 0; j < M; ++j) {
      const F<W> xs = again ? keep_last<W>(load<W>(x + j * c.ldx + c.k - W), rest) : load_part<W>(x + j * c.ldx, rest);
      for (int i = 0; i < N; ++i) {
        const F<W> ws = again ? load<W>(w + i * c.k + c.k - W) : load_part<W>(w + i * c.k, rest);
        acc[i][j] = fma(ws, xs, acc[i][j]);
      }
    }
  }
  for (int j = 0; j < M; ++j) {
    float* out = c.out + (m + j) * c.ldo + n;
    if constexpr (N % 4 == 0) {
      for (int i = 0; i < N; i += 4) {
        F<4> s = sum4(acc[i][j], acc[i + 1][j], acc[i + 2][j], acc[i + 3][j]);
        if (c.bias) s += load<4>(c.bias + n + i);
        if (c.add) s += load<4>(out + i);
        store<4>(out + i, s);
      }
    } else {
      for (int i = 0; i < N; ++i) {
        float s = sum<W>(acc[i][j]);
        if (c.bias) s += widen_one(c.bias[n + i]);
        out[i] = c.add ? out[i] + s : s;
      }
    }
  }
}

template <int W, int N, class T>
inline void row_tiles(const LinearCall<T>& c, int64_t m, int64_t m_end, int64_t n) {
  while (m < m_end) {
    const int64_t left = m_end - m;
    if (left == 1) {
      tile<W, N, 1>(c, m, n), m += 1;
    } else if (left == 2 || left == 4) {
      tile<W, N, 2>(c, m, n), m += 2;
    } else {
      tile<W, N, 3>(c, m, n), m += 3;
    }
  }
}

template <int W, class T>
void linear(const LinearCall<T>& c) {
  // Rows of x that stay in the second-level cache while all of w passes by.
  const int64_t fit = (256 << 10) / (4 * c.k), block = fit < 3 ? 3 : fit - fit % 3;
  for (int64_t m = 0; m < c.rows; m += block) {
    const int64_t m_end = m + block < c.rows ? m + block : c.rows;
    int64_t n = c.n_begin;
    if (m_end - m == 1) {
      for (; n + 8 <= c.n_end; n += 8) tile<W, 8, 1>(c, m, n);
    }
    for (; n + 4 <= c.n_end; n += 4) row_tiles<W, 4>(c, m, m_end, n);
    for (; n < c.n_end; ++n) row_tiles<W, 1>(c, m, m_end, n);
  }
}

// ---- attention ----

template <int W>
float softmax_numerators(float* s, int64_t n, float scale) {  // s = exp(scale · (s − max)); returns their sum
  float largest = s[0];
  for (int64_t i = 1; i < n; ++i) largest = s[i] > largest ? s[i] : largest;
  F<W> total = {};
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const F<W> e = exp<W>((load<W>(s + i) - largest) * scale);
    store<W>(s + i, e);
    total += e;
  }
  float all = sum<W>(total);
  for (; i < n; ++i) {
    s[i] = exp<W>(broadcast<W>((s[i] - largest) * scale))[0];
    all += s[i];
  }
  return all;
}

// out[0 .. C·W) = Σ_i p[i] · v[slot_i] with P interleaved partial sums over i (latency), folded in a fixed order.
template <int W, int C, int P, class T>
inline void weighted_sum(const AttentionCall<T>& c, const float* p, int64_t column, float* out, float scale) {
  F<W> acc[P][C] = {};
  const int64_t n = c.prefix + c.num_extra;
  const auto slot = [&](int64_t i) { return c.v + (i < c.prefix ? i : c.extra[i - c.prefix]) * c.d + column; };
  int64_t i = 0;
  for (; i + P <= n; i += P) {
#pragma GCC unroll 8
    for (int a = 0; a < P; ++a) {
      const T* v = slot(i + a);
      const F<W> weight = broadcast<W>(p[i + a]);
#pragma GCC unroll 4
      for (int b = 0; b < C; ++b) acc[a][b] = fma(weight, load<W>(v + b * W), acc[a][b]);
    }
  }
  for (int a = 0; i < n; ++i, ++a) {
    const T* v = slot(i);
    for (int b = 0; b < C; ++b) acc[a][b] = fma(broadcast<W>(p[i]), load<W>(v + b * W), acc[a][b]);
  }
  for (int b = 0; b < C; ++b) {
    for (int a = 1; a < P; ++a) acc[0][b] += acc[a][b];
    store<W>(out + column + b * W, acc[0][b] * scale);
  }
}

template <int W, class T>
void attention(const AttentionCall<T>& c) {
  const int64_t n = c.prefix + c.num_extra;
  if (n == 0) {
    for (int64_t i = 0; i < c.heads * c.d; ++i) c.out[i] = 0;
    return;
  }
  LinearCall<T> products{c.q, c.d, c.heads, c.k, c.d, 0, c.prefix, nullptr, c.scores, n, false};
  linear<W>(products);
  for (int64_t i = 0; i < c.num_extra; ++i) {
    products.n_begin = c.extra[i];
    products.n_end = c.extra[i] + 1;
    products.out = c.scores + c.prefix + i - c.extra[i];
    linear<W>(products);
  }
  for (int64_t h = 0; h < c.heads; ++h) {
    float* p = c.scores + h * n;
    float* out = c.out + h * c.d;
    const float scale = 1.0f / softmax_numerators<W>(p, n, c.scale);
    int64_t column = 0;
    for (; column + 4 * W <= c.d; column += 4 * W) weighted_sum<W, 4, 2>(c, p, column, out, scale);
    for (; column + W <= c.d; column += W) weighted_sum<W, 1, 8>(c, p, column, out, scale);
    for (; column < c.d; ++column) {
      float total = 0;
      for (int64_t i = 0; i < n; ++i) {
        const int64_t slot = i < c.prefix ? i : c.extra[i - c.prefix];
        total += p[i] * widen_one(c.v[slot * c.d + column]);
      }
      out[column] = total * scale;
    }
  }
}

// ---- element-wise ----

template <int W, class T>
void rms_norm(const float* x, const T* weight, float eps, int64_t n, float* out) {
  F<W> squares[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
    const F<W> a = load<W>(x + i), b = load<W>(x + i + W);
    squares[0] = fma(a, a, squares[0]);
    squares[1] = fma(b, b, squares[1]);
  }
  float total = sum<W>(squares[0] + squares[1]);
  for (; i < n; ++i) total += x[i] * x[i];
  const float scale = 1.0f / __builtin_sqrtf(total / static_cast<float>(n) + eps);
  for (i = 0; i + W <= n; i += W) store<W>(out + i, load<W>(x + i) * scale * load<W>(weight + i));
  for (; i < n; ++i) out[i] = x[i] * scale * widen_one(weight[i]);
}

template <int W>
void silu_mul(const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + W <= n; i += W) {
    const F<W> g = load<W>(gate + i);
    store<W>(out + i, g / (exp<W>(-g) + 1.0f) * load<W>(up + i));
  }
  for (; i < n; ++i) out[i] = gate[i] / (exp<W>(broadcast<W>(-gate[i]))[0] + 1.0f) * up[i];
}

void rope(const float* x, const float* cos, const float* sin, int64_t d, float* out) {
  const int64_t half = d / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[i + half];
    out[i] = a * cos[i] - b * sin[i];
    out[i + half] = b * cos[i] + a * sin[i];
  }
}

template <class T>
void widen(const T* in, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = widen_one(in[i]);
}

inline void narrow_one(float x, float& out) { out = x; }
inline void narrow_one(float x, Bf16& out) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  out.bits = static_cast<uint16_t>(x != x ? 0x7fc0u : rounded);
}
template <class T>
void narrow(const float* in, int64_t n, T* out) {
  for (int64_t i = 0; i < n; ++i) narrow_one(in[i], out[i]);
}

#define SPECDEC_TEXT2(x) #x
#define SPECDEC_TEXT(x) SPECDEC_TEXT2(x)
// Heads are short (8 to 128 values): attention keeps to 8 lanes.
constexpr int kLanes = SPECDEC_LANES, kHeadLanes = kLanes < 8 ? kLanes : 8;

template <class T>
constexpr Kernels<T> kTable = {SPECDEC_TEXT(SPECDEC_ISA), linear<kLanes, T>, attention<kHeadLanes, T>, rms_norm<kLanes, T>,
                               widen<T>, narrow<T>, silu_mul<kLanes>, rope};

}  // namespace

const Kernels<float>& kernels_f32();
const Kernels<Bf16>& kernels_bf16();
const Kernels<float>& kernels_f32() { return kTable<float>; }
const Kernels<Bf16>& kernels_bf16() { return kTable<Bf16>; }

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
