// Matrix products for few rows. Part of impl.h: included once per instruction set, with SPECDEC_ISA and SPECDEC_LANES
// defined.
#include "engine/kernels/cpu/simd.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

// Stores finished sums in c.out, after adding the bias and, if c.add, the old value of c.out.
template <class T>
inline void finish(const LinearCall<T>& c, F<4> s, int64_t m, int64_t n) {  // columns n … n + 3 of row m
  float* out = c.out + m * c.ldo + n;
  if (c.bias) s += load<4>(c.bias + n);
  if (c.add) s += load<4>(out);
  store<4>(out, s);
}
template <class Call>
inline void finish(const Call& c, float s, int64_t m, int64_t n) {
  float& out = c.out[m * c.ldo + n];
  if (c.bias) s += widen_one(c.bias[n]);
  out = c.add ? s + out : s;
}

// Computes N columns of M rows. Each output has its own accumulator, so every tile shape gives the same sums. A narrow
// tile has few memory reads in flight. So the tile for the first rows that read w prefetches w `ahead` elements in
// advance; ahead = 0 means that w is already in the cache.
template <int W, int N, int M, class T>
inline void tile(const LinearCall<T>& c, int64_t m, int64_t n, int64_t ahead) {
  constexpr int64_t kLine = 64 / sizeof(T);
  F<W> acc[N][M] = {};
  const float* x = c.x + m * c.ldx;
  const T* w = c.w + n * c.k;
  const int64_t whole = c.k - c.k % W, rest = c.k - whole;
  for (int64_t k = 0; k < whole; k += W) {
    if (k % kLine == 0 && ahead != 0) {
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i) __builtin_prefetch(w + i * c.k + k + ahead, 0, 2);
    }
    if constexpr (N < M) {  // the side with fewer vectors is held in registers
      F<W> ws[N];
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i) ws[i] = load<W>(w + i * c.k + k);
#pragma GCC unroll 16
      for (int j = 0; j < M; ++j) {
        const F<W> xs = load<W>(x + j * c.ldx + k);
#pragma GCC unroll 16
        for (int i = 0; i < N; ++i) acc[i][j] = fma(ws[i], xs, acc[i][j]);
      }
    } else {
      F<W> xs[M];
#pragma GCC unroll 16
      for (int j = 0; j < M; ++j) xs[j] = load<W>(x + j * c.ldx + k);
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i) {
        F<W> ws = load<W>(w + i * c.k + k);
#if defined(__x86_64__)
        if constexpr (M > 1) asm("" : "+x"(ws));  // forces one load of ws instead of one per product
#endif
#pragma GCC unroll 16
        for (int j = 0; j < M; ++j) acc[i][j] = fma(ws, xs[j], acc[i][j]);
      }
    }
  }
  if (rest != 0) {
    // Loads the last W elements as one vector, which is cheaper than a partial load, and sets the elements that were
    // already counted to zero.
    const bool again = c.k >= W;
#pragma GCC unroll 16
    for (int j = 0; j < M; ++j) {
      const F<W> xs = again ? keep_last<W>(load<W>(x + j * c.ldx + c.k - W), rest) : load_part<W>(x + j * c.ldx, rest);
#pragma GCC unroll 16
      for (int i = 0; i < N; ++i) {
        const F<W> ws = again ? load<W>(w + i * c.k + c.k - W) : load_part<W>(w + i * c.k, rest);
        acc[i][j] = fma(ws, xs, acc[i][j]);
      }
    }
  }
  // The loops below are unrolled, so that all indices of acc are constants. With a variable index the compiler would
  // keep the accumulators in memory.
  constexpr int kFours = N - N % 4;
#pragma GCC unroll 16
  for (int j = 0; j < M; ++j) {
#pragma GCC unroll 16
    for (int i = 0; i < kFours; i += 4)
      finish(c, sum4(acc[i][j], acc[i + 1][j], acc[i + 2][j], acc[i + 3][j]), m + j, n + i);
  }
  if constexpr (N % 4 == 2 && M == 2) {
    const F<4> s = sum4(acc[kFours][0], acc[kFours + 1][0], acc[kFours][1], acc[kFours + 1][1]);
    finish(c, s[0], m, n + kFours), finish(c, s[1], m, n + kFours + 1);
    finish(c, s[2], m + 1, n + kFours), finish(c, s[3], m + 1, n + kFours + 1);
  } else {
    static_assert(N % 4 == 0 || kFours == 0, "columns left over beside whole fours");
#pragma GCC unroll 16
    for (int i = kFours; i < N; ++i) {
      const F<4> s = sum4(acc[i][0], M > 1 ? acc[i][1 % M] : F<W>{}, M > 2 ? acc[i][2 % M] : F<W>{},
                          M > 3 ? acc[i][3 % M] : F<W>{});
#pragma GCC unroll 4
      for (int j = 0; j < M; ++j) finish(c, s[j], m + j, n + i);
    }
  }
}

template <int W, int N, int M, class T>
inline void columns(const LinearCall<T>& c, int64_t m, int64_t n, int64_t n_end, int64_t ahead) {
  for (; n + N <= n_end; n += N) tile<W, N, M>(c, m, n, ahead);
  if constexpr (N > 4) {
    for (; n + 4 <= n_end; n += 4) tile<W, 4, M>(c, m, n, ahead);
  }
  for (; n < n_end; ++n) tile<W, 1, M>(c, m, n, ahead);
}

// Computes the product in tiles of twelve accumulators, which keep both FMA units busy (latency 4 cycles) and fit into
// 16 registers.
template <int W, class T>
void linear(const LinearCall<T>& c) {
  // Prefetch distance in elements: 12 rows of w. Prefetches go to the L2 cache, because rows whose length is a power of
  // two would evict each other from L1.
  const int64_t far = 12 * c.k;
  // Number of rows of x (at most 256 KiB) that stay in the L2 cache while all of w is read.
  const int64_t fit = c.rows <= 4 ? 4 : (256 << 10) / (4 * c.k), block = fit < 4 ? 4 : fit - fit % 4;
  for (int64_t first = 0; first < c.rows; first += block) {
    const int64_t end = first + block < c.rows ? first + block : c.rows;
    for (int64_t n = c.n_begin; n < c.n_end; n += 12) {
      const int64_t n_end = n + 12 < c.n_end ? n + 12 : c.n_end;
      for (int64_t m = first; m < end;) {
        const int64_t left = end - m, ahead = m == first ? far : 0;
        if (left == 1) {
          columns<W, 12, 1>(c, m, n, n_end, ahead), m += 1;
        } else if (left == 2) {
          columns<W, 6, 2>(c, m, n, n_end, ahead), m += 2;
        } else if (left == 3 || left == 5 || left == 6) {
          columns<W, 4, 3>(c, m, n, n_end, ahead), m += 3;
        } else {
          columns<W, 3, 4>(c, m, n, n_end, ahead), m += 4;
        }
      }
    }
  }
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
