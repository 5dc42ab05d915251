// Products with block-quantised matrices (block_matrix.h) for any number of rows. Part of impl.h: included once per
// instruction set, with SPECDEC_ISA and SPECDEC_LANES defined. Each lane of a vector is one output. The inputs are
// converted to pairs of signed bytes, high and low, which are multiplied by the unsigned codes of the weights with the
// CPU's dot products of bytes: four inputs a lane (vpdpbusd, or vpmaddubsw on older CPUs). Sums within a group are
// exact integers, so neither the number of rows nor the instruction set changes their value.
#include "engine/kernels/cpu/block_matrix.h"
#include "engine/kernels/cpu/split_inputs.h"

namespace specdec::kernels::cpu::SPECDEC_ISA {

namespace {

// Adds, to the sums `acc` of each lane, the products of four unsigned bytes and four signed bytes. `Narrow` promises
// that all products added to one accumulator fit in 16 bits; without VNNI the accumulator then holds two sums of 16
// bits, which sum_of() adds.
template <int W, bool Narrow>
inline I<W> add_bytes(I<W> acc, I<W> codes, I<W> x) {
#if defined(__AVX512VNNI__)
  if constexpr (W == 16) return (I<W>)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)codes, (__m512i)x);
#elif defined(__AVX512BW__)
  if constexpr (W == 16) {
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)codes, (__m512i)x);
    return Narrow ? (I<W>)_mm512_add_epi16((__m512i)acc, pairs)
                  : acc + (I<W>)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
  }
#endif
#if defined(__AVXVNNI__)
  if constexpr (W == 8) return (I<W>)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)codes, (__m256i)x);
#elif defined(__AVX2__)
  if constexpr (W == 8) {
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)codes, (__m256i)x);
    return Narrow ? (I<W>)_mm256_add_epi16((__m256i)acc, pairs)
                  : acc + (I<W>)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
#endif
  const typename Simd<W>::U bytes = (typename Simd<W>::U)codes;
  return acc + (I<W>)(bytes & 255u) * (x << 24 >> 24) + (I<W>)(bytes >> 8 & 255u) * (x << 16 >> 24) +
         (I<W>)(bytes >> 16 & 255u) * (x << 8 >> 24) + (I<W>)(bytes >> 24) * (x >> 24);
}

// Returns the sums of an accumulator of add_bytes().
template <int W, bool Narrow>
inline I<W> sum_of(I<W> acc) {
#if defined(__AVX512BW__) && !defined(__AVX512VNNI__)
  if constexpr (W == 16 && Narrow) return (I<W>)_mm512_madd_epi16((__m512i)acc, _mm512_set1_epi16(1));
#endif
#if defined(__AVX2__) && !defined(__AVXVNNI__)
  if constexpr (W == 8 && Narrow) return (I<W>)_mm256_madd_epi16((__m256i)acc, _mm256_set1_epi16(1));
#endif
  return acc;
}

template <int W>
inline I<W> load_codes(const uint8_t* p) {
  I<W> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <int W>
inline I<W> broadcast_quad(const int8_t* p) {
  int32_t quad;
  __builtin_memcpy(&quad, p, sizeof quad);
  return quad + I<W>{};
}

// Reads the codes of a group for W outputs from output `at` on: quads j and j + 4 of the inputs, for j < 4.
template <int W, class L>
inline void read_codes(const uint8_t* group, int64_t j, int64_t at, I<W>& first, I<W>& second) {
  if constexpr (L::kBits == 8) {
    first = load_codes<W>(group + (j * kPackOutputs + at) * 4);
    second = load_codes<W>(group + ((j + 4) * kPackOutputs + at) * 4);
  } else {
    const I<W> both = load_codes<W>(group + (j * kPackOutputs + at) * 4);
    first = both & 0x0f0f0f0f;
    second = (both >> 4) & 0x0f0f0f0f;
    if constexpr (L::kBits == 6) {  // plane 4 + j % 2 has the upper bits of quads j % 2, j % 2 + 2, …, j % 2 + 6
      const I<W> upper = load_codes<W>(group + (4 + j % 2) * kPackOutputs * 4 + at * 4);
      const int shift = j < 2 ? 0 : 2;
      first |= ((upper >> shift) & 0x03030303) << 4;
      second |= (upper >> (shift + 4) & 0x03030303) << 4;
    }
  }
}

// Adds one group's sums to the totals, for V vectors of outputs and M rows. `scales` and `mins` hold the group's fp32
// scales per vector (two per vector if a scale belongs to half a group).
template <int W, int V, int M, class L>
inline void add_block(const uint8_t* codes, const F<W> (&scales)[V][L::kScales], const F<W> (&mins)[V],
                      const SplitInputs* x, int64_t ldx, int64_t at, float* totals) {
  constexpr bool kNarrow = L::kBits < 8;
  // Two products of a code and a byte of at most 64 fit in 16 bits, and so do those of all quads where sums are narrow.
  static_assert(2 * L::kLargest * 64 <= 32767 && (!kNarrow || 16 / L::kScales * L::kLargest * 64 <= 32767));
  constexpr int kHalves = L::kScales;
  I<W> high[kHalves][V][M] = {}, low[kHalves][V][M] = {};
#pragma GCC unroll 4
  for (int64_t j = 0; j < 4; ++j) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      I<W> first, second;
      read_codes<W, L>(codes, j, at + v * W, first, second);
#pragma GCC unroll 8
      for (int r = 0; r < M; ++r) {
        const SplitInputs& in = x[r * ldx];
        high[0][v][r] = add_bytes<W, kNarrow>(high[0][v][r], first, broadcast_quad<W>(in.high + 4 * j));
        low[0][v][r] = add_bytes<W, kNarrow>(low[0][v][r], first, broadcast_quad<W>(in.low + 4 * j));
        I<W>&h = high[kHalves - 1][v][r], &l = low[kHalves - 1][v][r];
        h = add_bytes<W, kNarrow>(h, second, broadcast_quad<W>(in.high + 4 * (j + 4)));
        l = add_bytes<W, kNarrow>(l, second, broadcast_quad<W>(in.low + 4 * (j + 4)));
      }
    }
  }
#pragma GCC unroll 8
  for (int v = 0; v < V; ++v) {
#pragma GCC unroll 8
    for (int r = 0; r < M; ++r) {
      const SplitInputs& in = x[r * ldx];
      float* total = totals + r * kPackOutputs + at + v * W;
      F<W> sum = load<W>(total);
#pragma GCC unroll 2
      for (int half = 0; half < kHalves; ++half) {
        I<W> exact = (sum_of<W, kNarrow>(high[half][v][r]) << 7) + sum_of<W, kNarrow>(low[half][v][r]);
        if constexpr (L::kOffset != 0) exact -= L::kOffset * (kHalves == 2 ? in.sum[half] : in.sum[0] + in.sum[1]);
        sum = fma(__builtin_convertvector(exact, F<W>), scales[v][half] * in.scale, sum);
      }
      if constexpr (L::kMins)
        sum = fma(mins[v], broadcast<W>(in.scale * static_cast<float>(in.sum[0] + in.sum[1])), sum);
      store<W>(total, sum);
    }
  }
}

// Adds the products of all inputs for V vectors of outputs from `at` on and M rows. `ahead` prefetches the weights that
// are read this many bytes later; 0: no prefetch.
template <int W, int V, int M, class L>
__attribute__((noinline)) void add_blocks(const uint8_t* block, int64_t supers, const SplitInputs* x, int64_t ldx,
                                          int64_t at, int64_t ahead, float* totals) {
  for (int64_t s = 0; s < supers; ++s, block += L::kSuperBytes * kPackOutputs) {
    const uint8_t* from = block + L::kHeadBytes * kPackOutputs;
    F<W> whole[V], whole_mins[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      whole[v] = load_halves<W>(block + 2 * (at + v * W));
      whole_mins[v] = F<W>{};
      if constexpr (L::kMins) whole_mins[v] = load_halves<W>(block + 2 * (kPackOutputs + at + v * W));
    }
#pragma GCC unroll 1
    for (int64_t g = 0; g < L::kGroups; ++g, from += L::kGroupBytes * kPackOutputs, ++x) {
      if (ahead != 0) {
#pragma GCC unroll 1
        for (int64_t line = 0; line < L::kGroupBytes * kPackOutputs; line += 64)
          __builtin_prefetch(from + ahead + line, 0, 2);
      }
      F<W> scales[V][L::kScales], mins[V];
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) {
        mins[v] = whole_mins[v];
        if constexpr (L::kGroups == 1) {
          scales[v][0] = whole[v];
        } else if constexpr (L::kScales == 2) {
          for (int half = 0; half < 2; ++half)
            scales[v][half] = whole[v] * load_bytes<W, int8_t>(from + half * kPackOutputs + at + v * W);
        } else {
          scales[v][0] = whole[v] * load_bytes<W, uint8_t>(from + at + v * W);
          mins[v] = whole_mins[v] * load_bytes<W, uint8_t>(from + kPackOutputs + at + v * W);
        }
      }
      add_block<W, V, M, L>(from + L::kGroupScaleBytes * kPackOutputs, scales, mins, x, ldx, at, totals);
    }
  }
}

// Computes the outputs of the block that begins with output n, for all rows.
template <int W, class L, class B>
void block_product(const LinearCall<Blocks, B>& c, const uint8_t* block, int64_t n) {
  // The baseline has no dot products of bytes, so larger tiles would only make it larger.
  constexpr bool kTiles = W > 4;
  constexpr int kVectors = !kTiles ? 1 : kPackOutputs / W < 4 ? kPackOutputs / W : 4, kPair = 2;
  constexpr int64_t kMost = W == 16 ? 4 : kTiles ? 3 : 1;
  alignas(64) float totals[kMost * kPackOutputs];
  const auto [width, begin, end] = block_at(c, n);
  const int64_t groups = c.k / kBlockInputs, supers = groups / L::kGroups;
  int64_t ahead = kBlockAhead;
  for (int64_t r = 0; r < c.rows; ahead = 0) {
    const int64_t left = c.rows - r, m = left < kMost ? left : kMost;
    const SplitInputs* x = c.split + r * groups;
    for (int64_t i = 0; i < m * kPackOutputs; ++i) totals[i] = 0;
    const auto take = [&]<int V, int M>() {
      for (int64_t at = begin - begin % (V * W); at < end; at += V * W, ahead = 0)
        add_blocks<W, V, M, L>(block, supers, x, groups, at, ahead, totals);
    };
    if (m == 1) take.template operator()<kVectors, 1>();
    if constexpr (kTiles) {
      if (m == 2) take.template operator()<kPair, 2>();
      if (m == 3) take.template operator()<kPair, 3>();
    }
    if constexpr (kMost == 4) {
      if (m == 4) take.template operator()<kPair, 4>();
    }
    finish_block<W>(c, totals, begin, end, n, r, m);
    r += m;
  }
}

template <int W, class B>
void linear_blocks(const LinearCall<Blocks, B>& c) {
  const int64_t groups = c.k / kBlockInputs;
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t g = 0; g < groups; ++g) split<W>(c.x + r * c.ldx + g * kBlockInputs, c.split[r * groups + g]);
  }
  const auto all = [&]<class L>() {
    const uint8_t* w = reinterpret_cast<const uint8_t*>(c.w);
    for (int64_t n = c.n_begin - c.n_begin % kPackOutputs; n < c.n_end; n += kPackOutputs)
      block_product<W, L>(c, w + n * (groups / L::kGroups * L::kSuperBytes), n);
  };
  with_layout(c.kind, all);
}

}  // namespace

}  // namespace specdec::kernels::cpu::SPECDEC_ISA
