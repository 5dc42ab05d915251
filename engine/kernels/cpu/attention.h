// Attention for few query positions. Part of impl.h: included once per instruction set, with SPECDEC_ISA and
// SPECDEC_LANES defined.
#include "engine/kernels/cpu/linear_blocks.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

template <int W>
void soft_cap(float* x, int64_t n, float scale, float cap) {
  const float inner = scale / cap;
  int64_t i = 0;
  for (; i + W <= n; i += W) store<W>(x + i, tanh<W>(load<W>(x + i) * inner) * cap);
  for (; i < n; ++i) x[i] = tanh<W>(broadcast<W>(x[i] * inner))[0] * cap;
}

// Replaces each of the n scores s by exp(scale · (s − max)) and returns the row's SoftmaxRow. If n = 0, its `inverse`
// is 0.
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

template <class T>
inline const T* at_slot(const Slots& side, int64_t slot, int64_t d) {
  const auto i = static_cast<uint64_t>(slot);
  return static_cast<const T*>(side.blocks[i / kBlockSlots]) + side.offset + static_cast<int64_t>(i % kBlockSlots) * d;
}

// Splits the slots [begin, end) at multiples of kBlockSlots and calls f(begin, end) for each piece.
template <class F>
inline void by_block(int64_t begin, int64_t end, const F& f) {
  while (begin < end) {
    const int64_t next = begin - begin % kBlockSlots + kBlockSlots, stop = next < end ? next : end;
    f(begin, stop);
    begin = stop;
  }
}

// Returns the index in a row's list of visible keys at which its sums begin. Key i of the list is added to partial sum
// i % P, so the sums begin at row.first rounded down to a multiple of P.
template <int P>
inline int64_t begin_of(const Visible& row) {
  return row.first - row.first % P;
}

// Adds the values of keys [begin, end) of a row's list of visible keys, weighted by p, to P partial sums. `begin` is a
// multiple of P, and P keys are processed at a time. Keys outside [row.first, end) count with weight 0; another key's
// values are read in their place.
template <int W, int C, int P, class T>
inline void add_entries(const AttentionCall<T>& c, const Visible& row, const float* p, int64_t column, int64_t begin,
                        int64_t end, F<W> (&acc)[P][C]) {
  for (int64_t i = begin; i < end; i += P) {
#pragma GCC unroll 8
    for (int a = 0; a < P; ++a) {
      const bool counts = i + a >= row.first && i + a < end;
      const int64_t at = i + a < row.first ? row.first : i + a < end ? i + a : end - 1;
      const F<W> weight = broadcast<W>(counts ? p[at] : 0.0f);
      const T* values = at_slot<T>(c.v, slot_of(row, at), c.d) + column;
#pragma GCC unroll 4
      for (int b = 0; b < C; ++b) acc[a][b] = fma(weight, load<W>(values + b * W), acc[a][b]);
    }
  }
}

// Computes C·W output columns of one head for R rows from row `first` on: out[column … column + C·W) = scale[r] · Σ_i
// p[i] · v[slot i]. To hide latency, the sum over i is split into P interleaved sums, which are added at the end. All R
// rows see the slots [low, common), where low and common are multiples of P.
template <int W, int C, int P, int R, class T>
inline void weighted_sums(const AttentionCall<T>& c, int64_t first, int64_t head, int64_t column, int64_t low,
                          int64_t common, const float* scale) {
  F<W> acc[R][P][C] = {};
  const float* p[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Visible& row = c.visible[first + r];
    p[r] = c.scores + ((first + r) * c.heads + head) * c.slots;
    const int64_t begin = begin_of<P>(row), n = count_of(row);
    if (begin < low) add_entries<W, C, P>(c, row, p[r], column, begin, low < n ? low : n, acc[r]);
  }
  static_assert(kBlockSlots % P == 0, "a block ends between two rounds of the split sums");
  by_block(low, common, [&](int64_t begin, int64_t end) {
    const T* v = at_slot<T>(c.v, begin, c.d) + column;
    for (int64_t i = begin; i < end; i += P, v += P * c.d) {
#pragma GCC unroll 8
      for (int a = 0; a < P; ++a) {
        F<W> values[C];
#pragma GCC unroll 4
        for (int b = 0; b < C; ++b) values[b] = load<W>(v + a * c.d + b * W);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const F<W> weight = broadcast<W>(p[r][i + a]);
#pragma GCC unroll 4
          for (int b = 0; b < C; ++b) acc[r][a][b] = fma(weight, values[b], acc[r][a][b]);
        }
      }
    }
  });
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Visible& row = c.visible[first + r];
    const int64_t begin = begin_of<P>(row);
    add_entries<W, C, P>(c, row, p[r], column, common > begin ? common : begin, count_of(row), acc[r]);
    float* out = c.out + (first + r) * c.ldq + head * c.d + column;
#pragma GCC unroll 4
    for (int b = 0; b < C; ++b) {
#pragma GCC unroll 8
      for (int a = 1; a < P; ++a) acc[r][0][b] += acc[r][a][b];
      store<W>(out + b * W, acc[r][0][b] * scale[r]);
    }
  }
}

// Computes all output columns of one head for R rows. The number of split sums of a column depends only on d, so a
// row's result does not depend on R, bit for bit.
template <int W, int R, class T>
inline void average(const AttentionCall<T>& c, int64_t first, int64_t head, int64_t low, int64_t common,
                    const float* scale) {
  int64_t column = 0;
  for (; column + 4 * W <= c.d; column += 4 * W) {
    if constexpr (R == 1) {
      weighted_sums<W, 4, 2, 1>(c, first, head, column, low, common, scale);
    } else {
      weighted_sums<W, 2, 2, R>(c, first, head, column, low, common, scale);
      weighted_sums<W, 2, 2, R>(c, first, head, column + 2 * W, low, common, scale);
    }
  }
  for (int r = 0; r < R; ++r) {
    int64_t at = column;
    const int64_t low8 = (low + 7) / 8 * 8, common8 = common - common % 8 < low8 ? low8 : common - common % 8;
    for (; at + W <= c.d; at += W) weighted_sums<W, 1, 8, 1>(c, first + r, head, at, low8, common8, scale + r);
    const Visible& row = c.visible[first + r];
    const float* p = c.scores + ((first + r) * c.heads + head) * c.slots;
    for (; at < c.d; ++at) {
      float total = 0;
      for (int64_t i = row.first; i < count_of(row); ++i)
        total += p[i] * widen_one(at_slot<T>(c.v, slot_of(row, i), c.d)[at]);
      c.out[(first + r) * c.ldq + head * c.d + at] = total * scale[r];
    }
  }
}

// Computes the raw scores (dot products) of each row of x with the keys of slots [begin, end), and stores them in out[m
// · ldo + slot] for row m. The rows of x are heads or positions.
template <int W, class T>
inline void scores_of(const AttentionCall<T>& c, const float* x, int64_t ldx, int64_t rows, int64_t begin, int64_t end,
                      float* out, int64_t ldo) {
  by_block(begin, end, [&](int64_t from, int64_t to) {
    linear<W>(
        LinearCall<T>{x, ldx, rows, at_slot<T>(c.k, from, c.d), c.d, 0, to - from, nullptr, out + from, ldo, false});
  });
}

// Computes the raw scores of slots [begin, end) for position r and all heads, and stores them from index `entry` of the
// position's scores on.
template <int W, class T>
inline void row_scores(const AttentionCall<T>& c, int64_t r, int64_t begin, int64_t end, int64_t entry) {
  scores_of<W>(c, c.q + r * c.ldq, c.d, c.heads, begin, end, c.scores + r * c.heads * c.slots + entry - begin, c.slots);
}

template <int W, class T>
void attention(const AttentionCall<T>& c) {
  int64_t low = c.visible[0].first, common = c.visible[0].prefix;  // slots that all rows see
  for (int64_t r = 1; r < c.rows; ++r) {
    common = c.visible[r].prefix < common ? c.visible[r].prefix : common;
    low = c.visible[r].first > low ? c.visible[r].first : low;
  }
  if (common < low) common = low = 0;
  if (c.rows == 1) {
    row_scores<W>(c, 0, low, common, low);
  } else {
    for (int64_t h = 0; h < c.heads; ++h)
      scores_of<W>(c, c.q + h * c.d, c.ldq, c.rows, low, common, c.scores + h * c.slots, c.heads * c.slots);
  }
  for (int64_t r = 0; r < c.rows; ++r) {
    const Visible& row = c.visible[r];
    const int64_t behind = row.first > common ? row.first : common;
    row_scores<W>(c, r, row.first, low < row.prefix ? low : row.prefix, row.first);
    row_scores<W>(c, r, behind, row.prefix, behind);
    for (int64_t i = row.first > row.prefix ? row.first - row.prefix : 0; i < row.num_extra; ++i)
      row_scores<W>(c, r, row.extra[i], row.extra[i] + 1, row.prefix + i);
  }
  const int64_t even_low = low + low % 2, even = common - common % 2 < even_low ? even_low : common - common % 2;
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t r = 0; r < c.rows;) {
      const bool pair = r + 1 < c.rows;
      float scale[2];
      for (int64_t i = 0; i < 1 + pair; ++i) {
        const Visible& row = c.visible[r + i];
        float* scores = c.scores + ((r + i) * c.heads + h) * c.slots + row.first;
        const int64_t count = count_of(row) - row.first;
        if (c.soft_cap != 0) soft_cap<W>(scores, count, c.scale, c.soft_cap);
        scale[i] = softmax_numerators<W>(scores, count, c.soft_cap != 0 ? 1.0f : c.scale).inverse;
      }
      pair ? average<W, 2>(c, r, h, even_low, even, scale) : average<W, 1>(c, r, h, even_low, even, scale);
      r += 1 + pair;
    }
  }
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
