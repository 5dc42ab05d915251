// Causal attention of a whole sequence and its gradients. Part of impl.h: included once per instruction set, with
// SPECDEC_ISA and SPECDEC_LANES defined. Each block of kQueryBlock queries runs against all keys that it sees. The
// gradients recompute the scores instead of storing them (Dao et al., FlashAttention, arXiv:2205.14135, section 3.1 and
// appendix B).
#include "engine/kernels/cpu/attention.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

// A strided matrix whose element (m, k) is p[m · row + k · column].
struct Strided {
  const float* p;
  int64_t row, column;
};

template <int W, int M, int C>
inline void product_tile(Strided a, const float* b, int64_t ldb, int64_t depth, float* c, int64_t ldc, bool add) {
  F<W> acc[M][C] = {};
  for (int64_t k = 0; k < depth; ++k) {
    F<W> row[C];
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) row[j] = load<W>(b + k * ldb + j * W);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const F<W> x = broadcast<W>(a.p[i * a.row + k * a.column]);
#pragma GCC unroll 4
      for (int j = 0; j < C; ++j) acc[i][j] = fma(x, row[j], acc[i][j]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < C; ++j) {
      float* to = c + i * ldc + j * W;
      store<W>(to, add ? load<W>(to) + acc[i][j] : acc[i][j]);
    }
  }
}

template <int W, int M, int C>
inline void product_columns(Strided a, int64_t rows, const float* b, int64_t ldb, int64_t depth, float* c, int64_t ldc,
                            bool add) {
  int64_t i = 0;
  for (; i + M <= rows; i += M)
    product_tile<W, M, C>({a.p + i * a.row, a.row, a.column}, b, ldb, depth, c + i * ldc, ldc, add);
  for (; i < rows; ++i) product_tile<W, 1, C>({a.p + i * a.row, a.row, a.column}, b, ldb, depth, c + i * ldc, ldc, add);
}

// Computes c = a · b, or c += a · b if `add`. Shapes: a [rows, depth], b [depth, columns], c [rows, columns]; columns
// is a multiple of W.
template <int W>
void product(Strided a, int64_t rows, const float* b, int64_t ldb, int64_t columns, int64_t depth, float* c,
             int64_t ldc, bool add) {
  int64_t n = 0;
  for (; n + 3 * W <= columns; n += 3 * W) product_columns<W, 4, 3>(a, rows, b + n, ldb, depth, c + n, ldc, add);
  for (; n + 2 * W <= columns; n += 2 * W) product_columns<W, 4, 2>(a, rows, b + n, ldb, depth, c + n, ldc, add);
  for (; n < columns; n += W) product_columns<W, 8, 1>(a, rows, b + n, ldb, depth, c + n, ldc, add);
}

// Copies a matrix [rows, n] with row stride ld into rows of `wide` elements, padded with zeros. pack_transposed()
// copies its transpose [n, rows] in the same way.
inline void pack(const float* from, int64_t ld, int64_t rows, int64_t n, int64_t wide, float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) to[i * wide + j] = from[i * ld + j];
    for (int64_t j = n; j < wide; ++j) to[i * wide + j] = 0;
  }
}
inline void pack_transposed(const float* from, int64_t ld, int64_t rows, int64_t n, int64_t wide, float* to) {
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < rows; ++i) to[j * wide + i] = from[i * ld + j];
    for (int64_t i = rows; i < wide; ++i) to[j * wide + i] = 0;
  }
}

template <int W>
inline int64_t whole(int64_t n) {
  return (n + W - 1) / W * W;
}

template <int W>
void sequence_attention(const SequenceAttentionCall& c) {
  const int64_t length = c.length, long_row = padded(length), d = c.d, short_row = padded(d);
  float* keys = c.workspace;  // [d, long_row]
  float* values = keys + d * long_row;
  float* scores = values + length * short_row;
  float* sums = scores + kQueryBlock * long_row;
  pack_transposed(c.k, c.ldk, length, d, long_row, keys);
  pack(c.v, c.ldk, length, d, short_row, values);
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t first = 0; first < length; first += kQueryBlock) {
      const int64_t end = first + kQueryBlock < length ? first + kQueryBlock : length, rows = end - first;
      product<W>({c.q + first * c.ldq + h * d, c.ldq, 1}, rows, keys, long_row, whole<W>(end), d, scores, long_row,
                 false);
      for (int64_t r = 0; r < rows; ++r) {
        float* s = scores + r * long_row;
        const int64_t seen = first + r + 1;
        const SoftmaxRow row = softmax_numerators<W>(s, seen, c.scale);
        for (int64_t i = seen; i < end; ++i) s[i] = 0;
        c.rows[h * length + first + r] = row;
      }
      product<W>({scores, long_row, 1}, rows, values, short_row, whole<W>(d), end, sums, short_row, false);
      for (int64_t r = 0; r < rows; ++r) {
        const float scale = c.rows[h * length + first + r].inverse;
        float* out = c.out + (first + r) * c.ldq + h * d;
        for (int64_t i = 0; i < d; ++i) out[i] = sums[r * short_row + i] * scale;
      }
    }
  }
}

// Computes the gradients from the upstream gradient dO. With the softmax probabilities P and the output O = P V:
// dV = Pᵀ dO, dS = P ∘ (dO Vᵀ − rowsum(dO ∘ O)) · scale, dQ = dS K, dK = dSᵀ Q.
template <int W>
void sequence_attention_grad(const SequenceAttentionGradCall& g) {
  const SequenceAttentionCall& c = g.forward;
  const int64_t length = c.length, long_row = padded(length), d = c.d, short_row = padded(d), block = kQueryBlock;
  float* keys = c.workspace;  // [d, long_row]
  float* values = keys + d * long_row;
  float* key_rows = values + d * long_row;  // [length, short_row]
  float* p = key_rows + length * short_row;
  float* ds = p + block * long_row;
  float* queries = ds + block * long_row;  // [block, short_row]
  float* upstream = queries + block * short_row;
  float* sums = upstream + block * short_row;
  float* dk = sums + block * short_row;  // [length, short_row]
  float* dv = dk + length * short_row;
  pack_transposed(c.k, c.ldk, length, d, long_row, keys);
  pack_transposed(c.v, c.ldk, length, d, long_row, values);
  pack(c.k, c.ldk, length, d, short_row, key_rows);
  for (int64_t i = 0; i < length * short_row; ++i) dk[i] = dv[i] = 0;
  for (int64_t h = 0; h < c.heads; ++h) {
    for (int64_t first = 0; first < length; first += block) {
      const int64_t end = first + block < length ? first + block : length, rows = end - first,
                    seen_by_all = whole<W>(end);
      pack(c.q + first * c.ldq + h * d, c.ldq, rows, d, short_row, queries);
      pack(g.dout + first * c.ldq + h * d, c.ldq, rows, d, short_row, upstream);
      product<W>({queries, short_row, 1}, rows, keys, long_row, seen_by_all, d, p, long_row, false);
      product<W>({upstream, short_row, 1}, rows, values, long_row, seen_by_all, d, ds, long_row, false);
      for (int64_t r = 0; r < rows; ++r) {
        const float* out = c.out + (first + r) * c.ldq + h * d;
        float inner = 0;
        for (int64_t i = 0; i < d; ++i) inner += upstream[r * short_row + i] * out[i];
        const SoftmaxRow row = c.rows[h * length + first + r];
        float *s = p + r * long_row, *t = ds + r * long_row;
        for (int64_t i = 0; i < seen_by_all; i += W) {
          const F<W> e = exp<W>((load<W>(s + i) - row.largest) * c.scale) * row.inverse;
          store<W>(s + i, e);
          store<W>(t + i, e * (load<W>(t + i) - inner) * c.scale);
        }
        for (int64_t i = first + r + 1; i < seen_by_all; ++i) s[i] = t[i] = 0;
      }
      product<W>({p, 1, long_row}, end, upstream, short_row, whole<W>(d), rows, dv, short_row, true);
      product<W>({ds, 1, long_row}, end, queries, short_row, whole<W>(d), rows, dk, short_row, true);
      product<W>({ds, long_row, 1}, rows, key_rows, short_row, whole<W>(d), end, sums, short_row, false);
      for (int64_t r = 0; r < rows; ++r) {
        float* dq = g.dq + (first + r) * c.ldq + h * d;
        for (int64_t i = 0; i < d; ++i) dq[i] = sums[r * short_row + i];
      }
    }
  }
  for (int64_t i = 0; i < length; ++i) {
    for (int64_t j = 0; j < d; ++j) {
      g.dk[i * g.ldk + j] = dk[i * short_row + j];
      g.dv[i * g.ldk + j] = dv[i * short_row + j];
    }
  }
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
