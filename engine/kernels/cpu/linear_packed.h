// Products with packed matrices for few rows. Part of impl.h: included once per instruction set, with SPECDEC_ISA and
// SPECDEC_LANES defined. Each lane of a vector is one output. Weights are read in address order, which is the fastest
// way to read memory. In each group, an output sums the even and the odd inputs separately and adds the two sums;
// groups are added one by one. This order does not depend on the vector width, so all instruction sets with a fused
// multiply-add give the same bits.
#include "engine/kernels/cpu/linear.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

// Maximum number of rows that are multiplied with a group while it is in the L1 cache.
constexpr int64_t kTotalRows = 24;

// Returns the weights of input k for the W outputs from `at` on, in a group with all kPackOutputs outputs. P is k % 2,
// M the number of activation rows that are multiplied by these weights.
template <int W, int P, int M = 1>
inline F<W> weight(const Packed<float>* group, int64_t k, int64_t at) {
  return load<W>(&group->value + k * kPackOutputs + at);
}
template <int W, int P, int M = 1>
inline F<W> weight(const Packed<Bf16>* group, int64_t k, int64_t at) {
  typename Simd<W>::U pairs;
  __builtin_memcpy(&pairs, group + k / 2 * 2 * kPackOutputs + 2 * at, sizeof pairs);
  if constexpr (P == 1 && M == 3) {
    pairs >>= 16;  // two shifts, because a bit mask would need a register, and a tile of three rows has none free
#if defined(__x86_64__)
    asm("" : "+x"(pairs));
#endif
    return (F<W>)(pairs << 16);
  }
  return (F<W>)(P == 0 ? pairs << 16 : pairs & 0xffff0000u);
}

inline float weight_one(const Packed<float>* group, int64_t width, int64_t k, int64_t at) {
  return group[k * width + at].value;
}
inline float weight_one(const Packed<Bf16>* group, int64_t width, int64_t k, int64_t at) {
  return widen_one(group[(k / 2 * width + at) * 2 + k % 2].value);
}

// The weights and the activations of one group of inputs (groups: cpu.h) in a product.
template <class S>
struct Group {
  const S* values;
  const float* x;  // activations of the first row for the group's inputs
  int64_t inputs;
  const char* next;  // the weights two groups ahead, to prefetch; null: no prefetch
};

inline constexpr bool is_wide(const Packed<float>*) { return true; }
inline constexpr bool is_wide(const void*) { return false; }

// Converts a group of `width` outputs to fp32 in the layout of a whole block, with zeros beyond `width`.
template <int W, class S>
inline Group<Packed<float>> widened(const Group<S>& g, int64_t width, float* values) {
  for (int64_t k = 0; k < g.inputs; ++k) {
    for (int64_t at = 0; at < kPackOutputs; ++at)
      values[k * kPackOutputs + at] = at < width ? weight_one(g.values, width, k, at) : 0;
  }
  return {reinterpret_cast<const Packed<float>*>(values), g.x, g.inputs, g.next};
}

// Accumulates the even (P = 0) or odd (P = 1) inputs of a group for several rows. L is the size in bytes of one input's
// weights in a whole block; L = 0 disables prefetching. Prefetches go to the L2 cache: with prefetches to L1, or none,
// products of several rows take 1.5 times as long.
template <int W, int V, int M, int P, int64_t L, class S>
inline void half_sums(const Group<S>& g, int64_t ldx, int64_t at, F<W> (&acc)[V][M]) {
#pragma GCC unroll 2
  for (int64_t k = P; k < g.inputs; k += 2) {
    if constexpr (L != 0) {
      __builtin_prefetch(g.next + k * L, 0, 2);
      if constexpr (L > 64) __builtin_prefetch(g.next + k * L + 64, 0, 2);
    }
    F<W> xs[M];
#pragma GCC unroll 8
    for (int j = 0; j < M; ++j) xs[j] = broadcast<W>(g.x[j * ldx + k]);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const F<W> w = weight<W, P, M>(g.values, k, at + v * W);
#pragma GCC unroll 8
      for (int j = 0; j < M; ++j) acc[v][j] = fma(w, xs[j], acc[v][j]);
    }
  }
}

// Adds a group's sums of even and of odd inputs to the totals of M rows for V vectors of outputs.
template <int W, int V, int M>
inline void add_sums(const F<W> (&even)[V][M], const F<W> (&odd)[V][M], float* totals) {
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
#pragma GCC unroll 8
    for (int j = 0; j < M; ++j) {
      float* total = totals + j * kPackOutputs + v * W;
      store<W>(total, load<W>(total) + (even[v][j] + odd[v][j]));
    }
  }
}

// Adds one group's sums for V vectors of outputs from `at` on and M rows. Not inlined, because different tile shapes in
// one function would compete for registers.
template <int W, int V, int M, int64_t L, class S>
__attribute__((noinline)) void add_group(const Group<S>& g, int64_t ldx, int64_t at, float* totals) {
  F<W> even[V][M] = {}, odd[V][M] = {};
  half_sums<W, V, M, 0, L>(g, ldx, at, even);
  half_sums<W, V, M, 1, L>(g, ldx, at, odd);
  add_sums<W>(even, odd, totals + at);
}

// Replaces add_group() for one row. Even and odd inputs share one loop: twice as many independent sums hide the latency
// of the multiply-adds.
template <int W, int V, class S>
__attribute__((always_inline)) inline void add_group_of_one(const Group<S>& g, int64_t at, float* totals) {
  F<W> even[V][1] = {}, odd[V][1] = {};
  int64_t k = 0;
#pragma GCC unroll 4
  for (; k + 2 <= g.inputs; k += 2) {
    const F<W> first = broadcast<W>(g.x[k]), second = broadcast<W>(g.x[k + 1]);
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      even[v][0] = fma(weight<W, 0>(g.values, k, at + v * W), first, even[v][0]);
      odd[v][0] = fma(weight<W, 1>(g.values, k + 1, at + v * W), second, odd[v][0]);
    }
  }
  if (k < g.inputs) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v)
      even[v][0] = fma(weight<W, 0>(g.values, k, at + v * W), broadcast<W>(g.x[k]), even[v][0]);
  }
  add_sums<W>(even, odd, totals + at);
}

// Adds one group's sums for M rows, for the vectors of a block that contain outputs [begin, end).
template <int W, int M, int64_t L, class S>
__attribute__((always_inline)) inline void add_columns(const Group<S>& g, int64_t ldx, int64_t begin, int64_t end,
                                                       float* totals) {
  constexpr int kVectors = kPackOutputs / W < 4 ? kPackOutputs / W : 4;
  int64_t at = begin - begin % W;
  for (; at % (kVectors * W) == 0 && at + kVectors * W <= end; at += kVectors * W) {
    if constexpr (M == 1)
      add_group_of_one<W, kVectors>(g, at, totals);
    else
      add_group<W, kVectors, M, L>(g, ldx, at, totals);
  }
  for (; at < end; at += W) {
    if constexpr (M == 1)
      add_group_of_one<W, 1>(g, at, totals);
    else
      add_group<W, 1, M, 0>(g, ldx, at, totals);
  }
}

// Adds one group's sums to the totals of all rows. Twelve accumulators keep both FMA units busy (latency 4 cycles) and
// leave registers for the factors.
template <int W, int64_t L, class S>
inline void add_rows(Group<S> g, int64_t ldx, int64_t rows, int64_t begin, int64_t end, float* totals) {
  constexpr int64_t kMost = W == 16 ? 6 : 3;
  while (rows > 0) {
    // Two rows with fp32 weights are computed one after the other: the first row reads the group sequentially from
    // memory, and the second finds it in the cache.
    const int64_t m = rows == 2 && is_wide(g.values) ? 1 : rows < kMost ? rows : kMost;
    const auto take = [&]<int M>() {
      g.next ? add_columns<W, M, L>(g, ldx, begin, end, totals) : add_columns<W, M, 0>(g, ldx, begin, end, totals);
    };
    if (m == 1) take.template operator()<1>();
    if (m == 2) take.template operator()<2>();
    if (m == 3) take.template operator()<3>();
    if constexpr (kMost == 6) {
      if (m == 4) take.template operator()<4>();
      if (m == 5) take.template operator()<5>();
      if (m == 6) take.template operator()<6>();
    }
    g.next = nullptr, g.x += m * ldx, totals += m * kPackOutputs, rows -= m;
  }
}

// Stores the totals of `rows` rows in c.out from row m on, for outputs [begin, end) of the block that begins with
// output n. Adds the bias and, if c.add, the old value of c.out.
template <int W, class S, class B>
inline void finish_block(const LinearCall<S, B>& c, const float* totals, int64_t begin, int64_t end, int64_t n,
                         int64_t m, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* total = totals + r * kPackOutputs;
    int64_t at = begin;
    for (; at + W <= end; at += W) {
      F<W> s = load<W>(total + at);
      float* out = c.out + (m + r) * c.ldo + n + at;
      if (c.bias) s += load<W>(c.bias + n + at);
      if (c.add) s += load<W>(out);
      store<W>(out, s);
    }
    for (; at < end; ++at) finish(c, total[at], m + r, n + at);
  }
}

// A block of a packed matrix. It has `width` outputs, of which this call computes [begin, end).
struct Block {
  int64_t width, begin, end;
};
template <class S, class B>
inline Block block_at(const LinearCall<S, B>& c, int64_t n) {
  const int64_t left = c.n - n, width = left < kPackOutputs ? left : kPackOutputs;
  return {width, c.n_begin > n ? c.n_begin - n : 0, c.n_end - n < width ? c.n_end - n : width};
}

// Computes the outputs of the block that begins with output n, for rows [m, m + rows).
template <int W, class S, class B>
inline void packed_block(const LinearCall<S, B>& c, const char* from, int64_t n, int64_t m, int64_t rows) {
  alignas(64) float totals[kTotalRows * kPackOutputs], values[kPackGroup * kPackOutputs];
  const auto [width, begin, end] = block_at(c, n);
  for (int64_t i = 0; i < rows * kPackOutputs; ++i) totals[i] = 0;
  for (int64_t first = 0; first < c.k; first += kPackGroup) {
    const int64_t inputs = c.k - first < kPackGroup ? c.k - first : kPackGroup;
    Group<S> g{reinterpret_cast<const S*>(from), c.x + m * c.ldx + first, inputs, nullptr};
    constexpr int64_t kInput = pack_group_bytes(static_cast<const S*>(nullptr), kPackGroup, kPackOutputs) / kPackGroup;
    if (m == 0 && rows > 1) g.next = from + 2 * pack_group_bytes(c.w, inputs, width);
    if (width < kPackOutputs) {
      add_rows<W, kInput>(widened<W>(g, width, values), c.ldx, rows, begin, end, totals);
    } else {
      add_rows<W, kInput>(g, c.ldx, rows, begin, end, totals);
    }
    from += pack_group_bytes(c.w, inputs, width);
  }
  finish_block<W>(c, totals, begin, end, n, m, rows);
}

template <int W, class S, class B>
void linear_packed(const LinearCall<S, B>& c) {
  const char* w = reinterpret_cast<const char*>(c.w);
  for (int64_t n = c.n_begin - c.n_begin % kPackOutputs; n < c.n_end; n += kPackOutputs) {
    for (int64_t m = 0; m < c.rows; m += kTotalRows)
      packed_block<W>(c, w + n * pack_row_bytes(c.w, c.k), n, m, c.rows - m < kTotalRows ? c.rows - m : kTotalRows);
  }
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
