// Attention for few query positions, under impl.h; included with SPECDEC_ISA and SPECDEC_LANES defined, once per instruction set.
#include "engine/kernels/cpu/products.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

// s = exp(scale · (s − max)) in place; inverse 0 for n = 0.
template <int W>
SoftmaxRow softmax_numerators(float* s, int64_t n, float scale) {
  if (n == 0) return {0, 0};
  float largest = s[0];
  int64_t i = 0;
  if (n >= W) {
    F<W> top = load<W>(s);
    for (i = W; i + W <= n; i += W) {
      const F<W> next = load<W>(s + i);
      top = next > top ? next : top;
    }
    for (int lane = 0; lane < W; ++lane) largest = top[lane] > largest ? top[lane] : largest;
  }
  for (; i < n; ++i) largest = s[i] > largest ? s[i] : largest;
  F<W> total = {};
  for (i = 0; i + W <= n; i += W) {
    const F<W> e = exp<W>((load<W>(s + i) - largest) * scale);
    store<W>(s + i, e);
    total += e;
  }
  float all = sum<W>(total);
  for (; i < n; ++i) {
    s[i] = exp<W>(broadcast<W>((s[i] - largest) * scale))[0];
    all += s[i];
  }
  return {largest, 1.0f / all};
}

inline int64_t slot_of(const Visible& row, int64_t i) { return i < row.prefix ? i : row.extra[i - row.prefix]; }
inline int64_t count_of(const Visible& row) { return row.prefix + row.num_extra; }

// R rows from `first` on, one head: out[column … column + C·W) = Σ_i p[i] · v[slot i], the sum over i split into P interleaved
// ones (latency) that are added at the end. The first `common` slots are the same for all rows (a multiple of P).
template <int W, int C, int P, int R, class T>
inline void weighted_sums(const AttentionCall<T>& c, int64_t first, int64_t head, int64_t column, int64_t common, const float* scale) {
  F<W> acc[R][P][C] = {};
  const float* p[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) p[r] = c.scores + ((first + r) * c.heads + head) * c.slots;
  const T* v = c.v + column;
  for (int64_t i = 0; i < common; i += P) {
#pragma GCC unroll 8
    for (int a = 0; a < P; ++a) {
      F<W> values[C];
#pragma GCC unroll 4
      for (int b = 0; b < C; ++b) values[b] = load<W>(v + (i + a) * c.d + b * W);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F<W> weight = broadcast<W>(p[r][i + a]);
#pragma GCC unroll 4
        for (int b = 0; b < C; ++b) acc[r][a][b] = fma(weight, values[b], acc[r][a][b]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Visible& row = c.visible[first + r];
    const int64_t n = count_of(row);
    for (int64_t i = common; i < n; i += P) {
#pragma GCC unroll 8
      for (int a = 0; a < P; ++a) {  // past the end: a slot that was read already, with weight 0
        const int64_t at = i + a < n ? i + a : n - 1;
        const F<W> weight = broadcast<W>(i + a < n ? p[r][at] : 0.0f);
        const T* values = v + slot_of(row, at) * c.d;
#pragma GCC unroll 4
        for (int b = 0; b < C; ++b) acc[r][a][b] = fma(weight, load<W>(values + b * W), acc[r][a][b]);
      }
    }
    float* out = c.out + (first + r) * c.ldq + head * c.d + column;
#pragma GCC unroll 4
    for (int b = 0; b < C; ++b) {
#pragma GCC unroll 8
      for (int a = 1; a < P; ++a) acc[r][0][b] += acc[r][a][b];
      store<W>(out + b * W, acc[r][0][b] * scale[r]);
    }
  }
}

// All columns of R rows. Which split a column gets depends on d alone.
template <int W, int R, class T>
inline void average(const AttentionCall<T>& c, int64_t first, int64_t head, int64_t common, const float* scale) {
  int64_t column = 0;
  for (; column + 4 * W <= c.d; column += 4 * W) {
    if constexpr (R == 1) {
      weighted_sums<W, 4, 2, 1>(c, first, head, column, common, scale);
    } else {
      weighted_sums<W, 2, 2, R>(c, first, head, column, common, scale);
      weighted_sums<W, 2, 2, R>(c, first, head, column + 2 * W, common, scale);
    }
  }
  for (int r = 0; r < R; ++r) {
    int64_t at = column;
    for (; at + W <= c.d; at += W) weighted_sums<W, 1, 8, 1>(c, first + r, head, at, common - common % 8, scale + r);
    const Visible& row = c.visible[first + r];
    const float* p = c.scores + ((first + r) * c.heads + head) * c.slots;
    for (; at < c.d; ++at) {
      float total = 0;
      for (int64_t i = 0; i < count_of(row); ++i) total += p[i] * widen_one(c.v[slot_of(row, i) * c.d + at]);
      c.out[(first + r) * c.ldq + head * c.d + at] = total * scale[r];
    }
  }
}

template <int W, class T>
void attention(const AttentionCall<T>& c) {
  int64_t common = c.visible[0].prefix;
  for (int64_t r = 1; r < c.rows; ++r) common = c.visible[r].prefix < common ? c.visible[r].prefix : common;
  if (c.rows == 1) {
    linear<W>(LinearCall<T>{c.q, c.d, c.heads, c.k, c.d, 0, common, nullptr, c.scores, c.slots, false});
  } else {
    for (int64_t h = 0; h < c.heads; ++h)
      linear<W>(LinearCall<T>{c.q + h * c.d, c.ldq, c.rows, c.k, c.d, 0, common, nullptr, c.scores + h * c.slots, c.heads * c.slots, false});
  }
  for (int64_t r = 0; r < c.rows; ++r) {
    const Visible& row = c.visible[r];
    float* scores = c.scores + r * c.heads * c.slots;
    LinearCall<T> rest{c.q + r * c.ldq, c.d, c.heads, c.k, c.d, common, row.prefix, nullptr, scores, c.slots, false};
    linear<W>(rest);
    for (int64_t i = 0; i < row.num_extra; ++i) {
      rest.n_begin = row.extra[i], rest.n_end = row.extra[i] + 1;
      rest.out = scores + row.prefix + i - row.extra[i];
      linear<W>(rest);
    }
  }
  const int64_t even = common - common % 2;
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t r = 0; r < c.rows;) {
      const bool pair = r + 1 < c.rows;
      float scale[2];
      for (int64_t i = 0; i < 1 + pair; ++i)
        scale[i] = softmax_numerators<W>(c.scores + ((r + i) * c.heads + h) * c.slots, count_of(c.visible[r + i]), c.scale).inverse;
      pair ? average<W, 2>(c, r, h, even, scale) : average<W, 1>(c, r, h, even, scale);
      r += 1 + pair;
    }
  }
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
