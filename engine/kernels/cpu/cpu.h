// Kernels on plain memory for few rows: fp32 activations, fp32, bf16 or int8 weights, fp32 or bf16 caches, fp32 sums.
// Torch-free. Each output element is one sum in one fixed order that depends on its length only, never on how many rows
// or threads there are: row r of 8 equals the row alone, bit for bit. Other instruction sets may round differently,
// int8 products only in the baseline, which has no fused multiply-add. No function allocates, throws or starts threads.
// Pointers need only the alignment of their element type.
#pragma once

#include <cstdint>

namespace specdec::kernels::cpu {

struct Bf16 {
  uint16_t bits;
};

// Matrices [n, k] packed into the stream that a product reads: for every kPackOutputs outputs (the last time fewer),
// for every kPackGroup inputs (the last time fewer), a group. Its values are
//   Packed<float>  fp32 [inputs, outputs]
//   Packed<Bf16>   bf16 [inputs / 2, outputs, 2], zero beyond an odd number of inputs
//   Int8           a scale for each output, fp32 [outputs], then int8 [kPackGroup / 2, outputs, 2], zero beyond k.
template <class T>
struct Packed {
  T value;
};
struct Int8 {
  int8_t value;
};
inline constexpr int64_t kPackOutputs = 32, kPackGroup = 64;
static inline int64_t pack_scale_bytes(const void*, int64_t) { return 0; }
static inline int64_t pack_scale_bytes(const Int8*, int64_t outputs) { return 4 * outputs; }
static constexpr int64_t pack_group_bytes(const Packed<float>*, int64_t inputs, int64_t outputs) {
  return 4 * inputs * outputs;
}
static constexpr int64_t pack_group_bytes(const Packed<Bf16>*, int64_t inputs, int64_t outputs) {
  return 2 * (inputs + inputs % 2) * outputs;
}
static constexpr int64_t pack_group_bytes(const Int8*, int64_t, int64_t outputs) { return (kPackGroup + 4) * outputs; }
// n of them are the matrix, and so many come before the n-th output where that begins a block.
template <class S>
static inline int64_t pack_row_bytes(const S* type, int64_t k) {
  return k / kPackGroup * pack_group_bytes(type, kPackGroup, 1) +
         (k % kPackGroup != 0 ? pack_group_bytes(type, k % kPackGroup, 1) : 0);
}
// Outputs [begin, end) of w [n, k], row-major; begin is a multiple of kPackOutputs, end too or n.
template <class T>
void pack(const T* w, int64_t k, int64_t n, int64_t begin, int64_t end, Packed<T>* out);
template <class T>
void unpack(const Packed<T>* w, int64_t k, int64_t n, int64_t begin, int64_t end, T* out);
// To int8 and back, of finite w. Symmetric: scale = max |w| / 127, rounded up to 16 bits, so that scale · value is
// exact in fp32 and, quantised again, the same; values to nearest even.
void quantise(const float* w, int64_t k, int64_t n, int64_t begin, int64_t end, Int8* out);
void dequantise(const Int8* w, int64_t k, int64_t n, int64_t begin, int64_t end, float* out);

// A group of kPackGroup inputs as integers, for products with int8: x = scale · value, the scale a power of two, to
// 2^-15 of the group's largest. (bf16 inputs, which GPUs take, are rounded to 2^-9 of themselves, the weights here to
// 2^-8 of their largest.) A group that is not finite has the scale NaN.
struct FixedInputs {
  int16_t value[kPackGroup];
  float scale;
};
inline constexpr int64_t kFixedRows = 24;  // of a call, at most
static inline int64_t fixed_groups(int64_t k) { return (k + kPackGroup - 1) / kPackGroup; }

// out[r, n] = Σ_k x[r, k] · w[n, k] + bias[n], for n in [n_begin, n_end); `add`: added to out instead of replacing it.
template <class T, class Bias = T>
struct LinearCall {
  const float* x;  // [rows, k], row stride ldx
  int64_t ldx, rows;
  const T* w;  // [n, k] row-major, or packed
  int64_t k, n_begin, n_end;
  const Bias* bias;  // [n] or null
  float* out;        // [rows, n], row stride ldo
  int64_t ldo;
  bool add;
  int64_t n = 0;                 // all outputs of w, for packed ones only
  FixedInputs* fixed = nullptr;  // int8 only: workspace [rows, fixed_groups(k)]
};

// What one query position sees of its context: the slots [0, prefix), then the listed ones, in that order; of these the
// ones from the `first` on.
struct Visible {
  int64_t prefix;
  const int32_t* extra;  // slots beyond the prefix, ascending
  int64_t num_extra;
  int64_t first = 0;  // a sliding window leaves out what comes before it
};

// Keys or values of one kv head, in blocks of kBlockSlots: slot i is the row i % kBlockSlots of the [kBlockSlots, d]
// that begin `offset` elements behind blocks[i / kBlockSlots].
inline constexpr int64_t kBlockSlots = 64;
struct Slots {
  const void* const* blocks;
  int64_t offset = 0;
};

// softmax(cap(scale · q kᵀ)) v, cap(s) = soft_cap · tanh(s / soft_cap), of several positions of one sequence for the
// query heads that share one kv head. Positions are computed together only to read keys and values once: each gets the
// bits it would get alone.
template <class T>
struct AttentionCall {
  const float* q;  // [rows, heads, d], row stride ldq, heads adjacent
  int64_t ldq, rows, heads, d;
  Slots k, v;              // of elements T
  const Visible* visible;  // [rows]; a row that sees nothing gives zeros
  float scale;
  float* scores;       // workspace [rows, heads, slots]
  int64_t slots;       // at least prefix + num_extra of every row
  float* out;          // [rows, heads, d], row stride ldq
  float soft_cap = 0;  // 0: none
};

// A softmax row as its largest raw score and 1 / Σ exp(scale · (score − largest)): enough to compute its values again.
struct SoftmaxRow {
  float largest, inverse;
};

// Causal attention of one whole sequence (position i sees 0 … i) for the query heads that share one kv head, fp32.
struct SequenceAttentionCall {
  const float* q;  // [length, heads, d], row stride ldq, heads adjacent
  int64_t ldq, heads, d, length;
  const float *k, *v;  // [length, d], row stride ldk
  int64_t ldk;
  float scale;
  float* out;        // like q; read by the gradients
  SoftmaxRow* rows;  // [heads, length]; read by the gradients
  float* workspace;  // sequence_workspace(length, d) floats
};
struct SequenceAttentionGradCall {
  SequenceAttentionCall forward;
  const float* dout;  // like q
  float* dq;          // like q
  float *dk, *dv;     // [length, d], row stride ldk, summed over the heads
  int64_t ldk;
};
inline constexpr int64_t kQueryBlock = 16;
static inline int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }  // to whole vectors of any set
static inline int64_t sequence_workspace(int64_t length, int64_t d) {
  return 2 * d * padded(length) + 3 * length * padded(d) + 2 * kQueryBlock * padded(length) +
         3 * kQueryBlock * padded(d);
}

template <class T>
struct Kernels {
  const char* name;  // instruction set
  void (*linear)(const LinearCall<T>& call);
  void (*linear_packed)(const LinearCall<Packed<T>, T>& call);
  void (*linear_int8)(const LinearCall<Int8, T>& call);
  void (*attention)(const AttentionCall<T>& call);
  void (*rms_norm)(const float* x, const T* weight, float eps, float offset, int64_t n,
                   float* out);  // times offset + weight; out may be x
  void (*widen)(const T* in, int64_t n, float* out);
  void (*narrow)(const float* in, int64_t n, T* out);                                // round to nearest even
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);       // out may be gate
  void (*gelu_tanh_mul)(const float* gate, const float* up, int64_t n, float* out);  // out may be gate
  void (*soft_cap)(float* x, int64_t n, float scale, float cap);                     // x <- cap · tanh(scale · x / cap)
  void (*rope)(const float* x, const float* cos, const float* sin, int64_t d,
               float* out);  // one head; cos, sin [d / 2]; out may be x
  void (*sequence_attention)(const SequenceAttentionCall& call);
  void (*sequence_attention_grad)(const SequenceAttentionGradCall& call);
};

// Best of the instruction sets this machine has: avx512, avx2, baseline. SPECDEC_KERNELS=<name> asks for a lesser one.
template <class T>
const Kernels<T>& kernels();
// All that this machine can run, best first (tests compare them).
template <class T>
int available(const Kernels<T>* out[3]);

}  // namespace specdec::kernels::cpu
