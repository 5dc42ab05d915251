// Builds the table of kernels for one instruction set. Included once per instruction set, with SPECDEC_ISA (its
// namespace) and SPECDEC_LANES (floats per vector) defined. Vectors are the vector extensions of GCC and clang, so one
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
                               attention<kHeadLanes, T>,
                               rms_norm<kLanes, T>,
                               widen<T>,
                               narrow<T>,
                               silu_mul<kLanes>,
                               gelu_tanh_mul<kLanes>,
                               soft_cap<kLanes>,
                               rope,
                               sequence_attention<kLanes>,
                               sequence_attention_grad<kLanes>};

}  // namespace

const Kernels<float>& kernels_f32();
const Kernels<Bf16>& kernels_bf16();
const Kernels<float>& kernels_f32() { return kTable<float>; }
const Kernels<Bf16>& kernels_bf16() { return kTable<Bf16>; }

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
