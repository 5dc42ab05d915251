// Included once per instruction set with SPECDEC_ISA (its namespace) and SPECDEC_LANES (floats of a vector) defined.
// Vectors are the compiler's own (GCC, clang), so one source serves every set. Nothing of the standard library is used here:
// its inline functions, compiled for a newer CPU, could be merged into code that must run on an older one.
#include "engine/kernels/cpu/products.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

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
