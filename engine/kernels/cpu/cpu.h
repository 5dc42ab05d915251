// Kernels on plain memory for few rows: fp32 activations, fp32 or bf16 weights and caches, fp32 sums. Torch-free.
// Each output element is one sum in one fixed order that depends on its length only, never on how many rows or threads
// there are: row r of 8 equals the row alone, bit for bit. Other instruction sets may round differently.
// No function allocates, throws or starts threads. Pointers need only the alignment of their element type.
#pragma once

#include <cstdint>

namespace specdec::kernels::cpu {

struct Bf16 {
  uint16_t bits;
};

// out[r, n] = Σ_k x[r, k] · w[n, k] + bias[n], for n in [n_begin, n_end); `add`: added to out instead of replacing it.
template <class T>
struct LinearCall {
  const float* x;        // [rows, k], row stride ldx
  int64_t ldx, rows;
  const T* w;            // [n, k] row-major
  int64_t k, n_begin, n_end;
  const T* bias;         // [n] or null
  float* out;            // [rows, n], row stride ldo
  int64_t ldo;
  bool add;
};

// One query position and one kv head: `heads` query heads over the slots [0, prefix) and then the listed ones, in that order.
template <class T>
struct AttentionCall {
  const float* q;        // [heads, d]
  int64_t heads, d;
  const T* k;            // [slots, d]
  const T* v;            // [slots, d]
  int64_t prefix;
  const int32_t* extra;  // slots beyond the prefix, ascending
  int64_t num_extra;
  float scale;
  float* scores;         // workspace [heads, prefix + num_extra]
  float* out;            // [heads, d]
};

template <class T>
struct Kernels {
  const char* name;  // instruction set
  void (*linear)(const LinearCall<T>& call);
  void (*attention)(const AttentionCall<T>& call);
  void (*rms_norm)(const float* x, const T* weight, float eps, int64_t n, float* out);
  void (*widen)(const T* in, int64_t n, float* out);
  void (*narrow)(const float* in, int64_t n, T* out);  // round to nearest even
  void (*silu_mul)(const float* gate, const float* up, int64_t n, float* out);  // out may be gate
  void (*rope)(const float* x, const float* cos, const float* sin, int64_t d, float* out);  // one head; cos, sin [d / 2]; out may be x
};

// Best of the instruction sets this machine has: avx512, avx2, baseline. SPECDEC_KERNELS=<name> asks for a lesser one.
template <class T>
const Kernels<T>& kernels();
// All that this machine can run, best first (tests compare them).
template <class T>
int available(const Kernels<T>* out[3]);

}  // namespace specdec::kernels::cpu
