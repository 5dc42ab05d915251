// Builds the table of kernels for one instruction set. Included once per instruction set, with SPECDEC_ISA (its
// namespace) and SPECDEC_LANES (floats per vector) defined. Vectors use the vector extensions of GCC and clang, so one
// source serves every instruction set. The standard library is not used here, because the linker could merge its inline
// functions, compiled for a newer CPU, into code that must run on an older CPU.
#include "engine/kernels/cpu/sequence_attention.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

template <int W, class T>
void rms_norm(const float* x, const T* weight, float eps, float offset, int64_t n, float* out) {
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
  for (i = 0; i + W <= n; i += W) store<W>(out + i, load<W>(x + i) * scale * (load<W>(weight + i) + offset));
  for (; i < n; ++i) out[i] = x[i] * scale * (widen_one(weight[i]) + offset);
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

// Computes the gradients of the RMS norm. With u = dy · (offset + weight) and the normalised y = scale · x: dx = scale
// · (u − y · mean(u · y)), dweight = dy · y.
template <int W, class T>
void rms_norm_grad(const NormGradCall& c, const T* weight) {
  F<W> squares = {}, products = {};
  int64_t i = 0;
  for (; i + W <= c.n; i += W) {
    const F<W> x = load<W>(c.x + i);
    squares = fma(x, x, squares);
    products = fma(x * (load<W>(weight + i) + c.offset), load<W>(c.dy + i), products);
  }
  float total = sum<W>(squares), inner = sum<W>(products);
  for (; i < c.n; ++i) {
    total += c.x[i] * c.x[i];
    inner += c.x[i] * (widen_one(weight[i]) + c.offset) * c.dy[i];
  }
  const float mean = 1.0f / static_cast<float>(c.n), scale = 1.0f / __builtin_sqrtf(total * mean + c.eps),
              pull = inner * scale * scale * mean;  // mean(u · y) · scale
  for (i = 0; i + W <= c.n; i += W) {
    const F<W> x = load<W>(c.x + i), dy = load<W>(c.dy + i);
    store<W>(c.dx + i, (dy * (load<W>(weight + i) + c.offset) - x * pull) * scale);
    store<W>(c.dweight + i, fma(dy, x * scale, load<W>(c.dweight + i)));
  }
  for (; i < c.n; ++i) {
    c.dx[i] = (c.dy[i] * (widen_one(weight[i]) + c.offset) - c.x[i] * pull) * scale;
    c.dweight[i] += c.dy[i] * (c.x[i] * scale);
  }
}

// The derivative of silu(g) = g · s with s = 1 / (1 + e^−g) is s · (1 + g · (1 − s)).
template <int W>
void silu_mul_grad(const GateGradCall& c) {
  const auto gradients = [](F<W> g, F<W> up, F<W> dy, F<W>& dgate, F<W>& dup) {
    const F<W> s = 1.0f / (exp<W>(-g) + 1.0f);
    dup = dy * (g * s);
    dgate = dy * up * s * (1.0f + g * (1.0f - s));
  };
  F<W> dgate, dup;
  int64_t i = 0;
  for (; i + W <= c.n; i += W) {
    gradients(load<W>(c.gate + i), load<W>(c.up + i), load<W>(c.dy + i), dgate, dup);
    store<W>(c.dgate + i, dgate);
    store<W>(c.dup + i, dup);
  }
  for (; i < c.n; ++i) {
    gradients(broadcast<W>(c.gate[i]), broadcast<W>(c.up[i]), broadcast<W>(c.dy[i]), dgate, dup);
    c.dgate[i] = dgate[0], c.dup[i] = dup[0];
  }
}

template <int W>
inline F<W> gelu_tanh(F<W> x) {
  const F<W> inner = fma(x * x * 0.044715f, x, x) * 0.7978845608f;  // sqrt(2 / pi)
  return x * 0.5f * (tanh<W>(inner) + 1.0f);
}

template <int W>
void gelu_tanh_mul(const float* gate, const float* up, int64_t n, float* out) {
  int64_t i = 0;
  for (; i + W <= n; i += W) store<W>(out + i, gelu_tanh<W>(load<W>(gate + i)) * load<W>(up + i));
  for (; i < n; ++i) out[i] = gelu_tanh<W>(broadcast<W>(gate[i]))[0] * up[i];
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
// Heads are short (usually 8 to 128 values), so attention uses vectors of at most 8 lanes.
constexpr int kLanes = SPECDEC_LANES, kHeadLanes = kLanes < 8 ? kLanes : 8;

template <class T>
constexpr Kernels<T> kTable = {SPECDEC_TEXT(SPECDEC_ISA),
                               linear<kLanes, T>,
                               linear_packed<kLanes, Packed<T>, T>,
                               linear_int8<kLanes, T>,
                               linear_blocks<kLanes, T>,
                               attention<kHeadLanes, T>,
                               rms_norm<kLanes, T>,
                               widen<T>,
                               narrow<T>,
                               silu_mul<kLanes>,
                               gelu_tanh_mul<kLanes>,
                               soft_cap<kLanes>,
                               rope,
                               sequence_attention<kLanes>,
                               sequence_attention_grad<kLanes>,
                               rms_norm_grad<kLanes, T>,
                               silu_mul_grad<kLanes>};

}  // namespace

const Kernels<float>& kernels_f32();
const Kernels<Bf16>& kernels_bf16();
const Kernels<float>& kernels_f32() { return kTable<float>; }
const Kernels<Bf16>& kernels_bf16() { return kTable<Bf16>; }

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
