// Products with int8 weights for few rows, under impl.h; included with SPECDEC_ISA and SPECDEC_LANES defined, once per instruction set.
// The lanes of a vector are outputs, so each sum runs over its inputs one by one, a group at a time: sets that have a fused
// multiply-add give the same bits, and the weights pass by in the order in which they lie.
#include "engine/kernels/cpu/products.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

constexpr int64_t kInt8Block = kInt8Outputs * (kInt8Group + 4);  // bytes: kInt8Outputs outputs, one group

// One group of fewer outputs laid out as that of a whole block. What is beyond them is not read from memory that may not be there.
inline void widen_group(const char* from, int64_t outputs, char* to) {
  for (int64_t i = 0; i < 4 * outputs; ++i) to[i] = from[i];
  for (int64_t k = 0; k < kInt8Group; ++k) {
    for (int64_t i = 0; i < outputs; ++i) to[4 * kInt8Outputs + k * kInt8Outputs + i] = from[4 * outputs + k * outputs + i];
  }
}

// Sums of vectors of outputs from n on of row m; those outside of the call's range are dropped.
template <int W, class B>
inline void finish_lanes(const LinearCall<Int8, B>& c, F<W> s, int64_t m, int64_t n) {
  float* out = c.out + m * c.ldo + n;
  if (n >= c.n_begin && n + W <= c.n_end) {
    if (c.bias) s += load<W>(c.bias + n);
    if (c.add) s += load<W>(out);
    store<W>(out, s);
    return;
  }
  float lanes[W];
  store<W>(lanes, s);
  for (int i = 0; i < W; ++i) {
    if (n + i >= c.n_begin && n + i < c.n_end) finish(c, lanes[i], m, n + i);
  }
}

// V vectors of outputs from n on, of Q blocks that follow each other, for M rows. `blocks` is the first block's first group, of
// `outputs` outputs (Q = 1), and `next` the bytes from there to the next block.
template <int W, int Q, int V, int M, class B>
inline void int8_tile(const LinearCall<Int8, B>& c, const char* blocks, int64_t outputs, int64_t next, int64_t m, int64_t n) {
  char whole[kInt8Block];  // lanes beyond `outputs` are computed from what lies there and dropped
  const int64_t at = n % kInt8Outputs;
  const float* x = c.x + m * c.ldx;
  F<W> total[Q][V][M] = {};
  for (int64_t first = 0; first < c.k; first += kInt8Group, blocks += outputs * (kInt8Group + 4)) {
    if (outputs < kInt8Outputs) widen_group(blocks, outputs, whole);
    const char* block = outputs < kInt8Outputs ? whole : blocks;
    const int64_t inputs = c.k - first < kInt8Group ? c.k - first : kInt8Group;
    const float* scales = reinterpret_cast<const float*>(block) + at;
    const Int8* values = reinterpret_cast<const Int8*>(block + 4 * kInt8Outputs) + at;
    F<W> acc[Q][V][M] = {};
#pragma GCC unroll 2
    for (int64_t k = 0; k < inputs; ++k) {
      if (Q == 2 && k % 2 == 0) {  // one row alone is faster than what the hardware fetches ahead: 4 KiB on, a line a time
        __builtin_prefetch(values + k * kInt8Outputs + 4096);
        __builtin_prefetch(values + next + k * kInt8Outputs + 4096);
      }
      F<W> xs[M];
#pragma GCC unroll 8
      for (int j = 0; j < M; ++j) xs[j] = broadcast<W>(x[j * c.ldx + first + k]);
#pragma GCC unroll 8
      for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
        for (int v = 0; v < V; ++v) {
          const F<W> ws = load<W>(values + q * next + k * kInt8Outputs + v * W);
#pragma GCC unroll 8
          for (int j = 0; j < M; ++j) acc[q][v][j] = fma(ws, xs[j], acc[q][v][j]);
        }
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        const F<W> scale = load<W>(scales + q * next / 4 + v * W);
#pragma GCC unroll 8
        for (int j = 0; j < M; ++j) total[q][v][j] = fma(acc[q][v][j], scale, total[q][v][j]);
      }
    }
  }
#pragma GCC unroll 8
  for (int q = 0; q < Q; ++q) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
#pragma GCC unroll 8
      for (int j = 0; j < M; ++j) finish_lanes<W>(c, total[q][v][j], m + j, n + q * kInt8Outputs + v * W);
    }
  }
}

// All outputs of one block for M rows, V vectors at a time; vectors wholly outside of the range are left out.
template <int W, int V, int M, class B>
inline void int8_block(const LinearCall<Int8, B>& c, const char* block, int64_t m, int64_t n) {
  const int64_t left = c.n - n, outputs = left < kInt8Outputs ? left : kInt8Outputs;
  for (int64_t end = n + kInt8Outputs; n < end; n += V * W) {
    if (n < c.n_end && n + V * W > c.n_begin) int8_tile<W, 1, V, M>(c, block, outputs, 0, m, n);
  }
}

template <int W, class B>
inline void int8_rows(const LinearCall<Int8, B>& c, const char* block, int64_t n) {
  constexpr int kVectors = kInt8Outputs / W, kHalf = kVectors / 2;
  for (int64_t m = 0; m < c.rows;) {
    const int64_t left = c.rows - m;
    if (left == 1) {
      int8_block<W, kVectors, 1>(c, block, m, n), m += 1;
    } else if (left == 2) {
      int8_block<W, kVectors, 2>(c, block, m, n), m += 2;
    } else if (left == 3 || left == 5 || left == 6) {
      int8_block<W, kHalf, 3>(c, block, m, n), m += 3;
    } else {
      int8_block<W, kHalf, 4>(c, block, m, n), m += 4;
    }
  }
}

template <int W, class B>
void linear_int8(const LinearCall<Int8, B>& c) {
  const char* w = reinterpret_cast<const char*>(c.w);
  const int64_t next = int8_groups(c.k) * kInt8Block;
  for (int64_t n = c.n_begin - c.n_begin % kInt8Outputs; n < c.n_end; n += kInt8Outputs) {
    const char* block = w + n / kInt8Outputs * next;
    if (c.rows == 1 && n + 2 * kInt8Outputs <= c.n_end) {
      int8_tile<W, 2, kInt8Outputs / W, 1>(c, block, kInt8Outputs, next, 0, n), n += kInt8Outputs;
    } else {
      int8_rows<W>(c, block, n);
    }
  }
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
