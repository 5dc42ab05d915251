// Attention of the rows of a pass over keys in the paged KV cache. Each block of threads handles up to 16 queries of
// one sequence and kv head, and one range ("split") of the sequence's keys; a second kernel merges the splits. Matrix
// products run on the tensor cores; everything else is fp32.
//
// Where a split begins and which warp reads which keys depend on the keys' slots alone, and masked keys do not change
// the result. So a row's result does not depend, bit for bit, on the other rows of the pass.
#include <ptx.h>

#include <cmath>
#include <type_traits>

#include "engine/kernels/cuda/device.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/paged_slots.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kMostSplits = 32;  // of a tile (kPagedSplits)
constexpr int kKeys = 16;        // keys that a warp reads at a time
constexpr unsigned kAll = 0xffffffffu;
constexpr int kThreads = 256;  // threads per block of the kernel that writes keys and values

// Copies the rows' keys and values to their cache slots. Each thread copies one number.
__global__ void __launch_bounds__(kThreads)
    write_slots(PagedPass pass, int64_t layer, const uint16_t* __restrict__ k, const uint16_t* __restrict__ v) {
  const int64_t width = static_cast<int64_t>(pass.kv_heads) * pass.d, count = pass.num_rows * width;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= 2 * count) return;
  const int64_t side = i / count, row = i % count / width, kv_head = i % width / pass.d, at = i % pass.d;
  const PagedRow& place = pass.rows[row];
  if (place.slot < 0) return;
  side_of(pass, layer, side, kv_head, place.table,
          place.slot / kPagedSlots)[static_cast<int64_t>(place.slot % kPagedSlots) * pass.d + at] =
      (side == 0 ? k : v)[i % count];
}

// The keys visible to one query: of the 64 slots that end at `last`, those whose bit is set in `tail` (bit i stands for
// slot last - i), and of the older slots all from `first` on.
struct Seen {
  uint64_t tail = 0;
  int last = -1;  // the query's own slot
  int first = 0;
  __device__ bool has(int slot) const {
    const int back = last - slot;
    return back >= 64 ? slot >= first : back >= 0 && (tail >> back & 1) != 0;
  }
};
__device__ Seen seen_by(const PagedRow& row, int window) {
  Seen seen;
  seen.tail = row.tail, seen.last = row.slot;
  if (window <= 0) return seen;
  int count = 0;  // number of visible keys in the tail so far, counted backwards from the query's own slot
  for (int back = 0; back < 64; ++back)
    if ((seen.tail >> back & 1) != 0 && ++count > window) seen.tail &= ~(uint64_t{1} << back);
  seen.first = max(0, row.slot - 63 - max(0, window - count));
  return seen;
}

// Returns the address of a split's results: kPagedQueries rows of d weighted sums of values, then for each query its
// largest score and the sum of its weights.
__device__ float* part_of(const PagedPass& pass, const PagedTile& tile, int64_t kv_head, int64_t split) {
  return pass.parts + ((tile.part + split) * pass.kv_heads + kv_head) * kPagedQueries * (pass.d + 2);
}

__device__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAll, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAll, x, 2));
}
__device__ float quad_sum(float x) {
  x += __shfl_xor_sync(kAll, x, 1);
  return x + __shfl_xor_sync(kAll, x, 2);
}
// Returns exp(x - most), or 0 for a masked key (x = -inf).
__device__ float weight_of(float x, float most) { return x == -INFINITY ? 0.0f : expf(x - most); }

template <class T>
__device__ uint32_t pair_of(float low, float high) {
  return bits(narrow<T>(low)) | bits(narrow<T>(high)) << 16;
}

// The running softmax state of a warp's 16 queries; each lane holds two of them, lane / 4 and lane / 4 + 8. The head is
// divided into chunks of 64 numbers: tile i of chunk c has the numbers 64c + 8n + i for n = 0 … 7, because each lane
// loads eight consecutive numbers.
template <int kChunks>
struct Sums {
  float values[kChunks][8][4] = {};
  float most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
};

// A lane's share of its two queries. Queries of wide heads do not fit into registers and are read again for every key.
template <int kChunks>
struct Queries {
  static constexpr bool kKept = kChunks <= 2;
  const uint16_t* rows[2];
  int d[2] = {0, 0};  // 0 means that the query is absent
  Eight kept[2][kKept ? 2 * kChunks : 1];
  __device__ void keep() {
    if constexpr (kKept) {
#pragma unroll
      for (int c = 0; c < 2 * kChunks; ++c)
#pragma unroll
        for (int h = 0; h < 2; ++h) kept[h][c] = read(h, c);
    }
  }
  __device__ Eight at(int h, int c) const {
    if constexpr (kKept) return kept[h][c];
    return read(h, c);
  }

 private:
  __device__ Eight read(int h, int c) const {
    return load<true>(rows[h], 32 * c + 8 * (static_cast<int>(threadIdx.x) % 4), d[h]);
  }
};

// Adds the 16 keys from `slot` on to the running sums. `keys` and `values` point to the cache block with these slots.
template <class T, int kChunks>
__device__ void add_keys(Sums<kChunks>& sums, const Queries<kChunks>& queries, const Seen (&seen)[2],
                         const PagedLayer& layer, const uint16_t* keys, const uint16_t* values, int slot, int slots,
                         int d) {
  const int lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4, member = lane % 4;
  const int row = slot % kPagedSlots;
  // The values of the four keys that this lane's part of the operand covers. Those of narrow heads are on their way
  // while the scores are computed.
  constexpr bool kEarly = kChunks <= 2;
  Eight early[kEarly ? kChunks : 1][4];
  const auto read_values = [&](int c, Eight(&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 2 * member + i % 2 + i / 2 * 8;
      v[i] = load<true>(values + static_cast<int64_t>(row + key) * d, 64 * c + 8 * group, slot + key < slots ? d : 0);
    }
  };
  if constexpr (kEarly) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) read_values(c, early[c]);
  }
  float scores[2][4] = {};
  [[maybe_unused]] constexpr int kUnrolled = Queries<kChunks>::kKept ? 2 * kChunks : 1;  // 1 saves registers
#pragma unroll kUnrolled
  for (int c = 0; c < 2 * kChunks; ++c) {
    const Eight q = queries.at(0, c), r = queries.at(1, c);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int key = 8 * j + group;
      const Eight k =
          load<true>(keys + static_cast<int64_t>(row + key) * d, 32 * c + 8 * member, slot + key < slots ? d : 0);
      mma_m16n8k16<T>(scores[j], {q.pairs[0], r.pairs[0], q.pairs[1], r.pairs[1]}, {k.pairs[0], k.pairs[1]});
      mma_m16n8k16<T>(scores[j], {q.pairs[2], r.pairs[2], q.pairs[3], r.pairs[3]}, {k.pairs[2], k.pairs[3]});
    }
  }
  float factors[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float most = -INFINITY;
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[j][2 * h + e];
        score *= layer.scale;
        if (layer.soft_cap != 0) score = layer.soft_cap * tanhf(score / layer.soft_cap);
        if (!seen[h].has(slot + 8 * j + 2 * member + e)) score = -INFINITY;
        most = fmaxf(most, score);
      }
    most = fmaxf(sums.most[h], quad_max(most));
    factors[h] = weight_of(sums.most[h], most);
    sums.most[h] = most;
    sums.total[h] *= factors[h];
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& score = scores[j][2 * h + e];
        score = weight_of(score, most);
        sums.total[h] += score;
      }
  }
  const uint32_t weights[4] = {pair_of<T>(scores[0][0], scores[0][1]), pair_of<T>(scores[0][2], scores[0][3]),
                               pair_of<T>(scores[1][0], scores[1][1]), pair_of<T>(scores[1][2], scores[1][3])};
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    Eight late[4];
    if constexpr (!kEarly) read_values(c, late);
    const Eight(&v)[4] = kEarly ? early[kEarly ? c : 0] : late;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float (&value)[4] = sums.values[c][i];
      value[0] *= factors[0], value[1] *= factors[0], value[2] *= factors[1], value[3] *= factors[1];
      mma_m16n8k16<T>(value, weights, {v[0][i] | v[1][i] << 16, v[2][i] | v[3][i] << 16});
    }
  }
}

// Shared memory through which the warps of a block exchange each query's largest score, sum of weights and sums of
// values.
template <int kChunks>
struct SplitMemory {
  float most[kWarps][kPagedQueries], totals[kWarps][kPagedQueries];
  float merged[kPagedQueries][kChunks * 64];
};

// Computes attention over one split of the keys. There is one block per split, kv head and tile. Tiles are neighbours
// in the grid, so that those of one sequence read a split's keys and values from memory once.
template <class T, int kChunks>
__global__ void __launch_bounds__(kWarps * 32, 1) attend_split(PagedPass pass, PagedLayer layer) {
  if (pass.live && *pass.live == 0) return;
  auto& [most, totals, merged] = *static_cast<SplitMemory<kChunks>*>(shared_memory());
  const PagedTile tile = pass.tiles[blockIdx.x];
  const int kv_head = static_cast<int>(blockIdx.y), begin = static_cast<int>(blockIdx.z) * tile.split;
  const int end = min(begin + tile.split, tile.slots);
  if (begin >= end) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32, group = lane / 4,
            member = lane % 4, times = pass.heads / pass.kv_heads;
  Seen seen[2];
  Queries<kChunks> queries;
  for (int h = 0; h < 2; ++h) {
    const int query = tile.first + group + 8 * h;
    const int64_t row = tile.row + query / times, head = kv_head * times + query % times;
    const bool there = group + 8 * h < tile.queries;
    if (there) seen[h] = seen_by(pass.rows[row], layer.window);
    queries.rows[h] = static_cast<const uint16_t*>(layer.q) + (row * pass.heads + head) * pass.d;
    queries.d[h] = there ? pass.d : 0;
  }
  queries.keep();
  // Keys before the window of the first row are skipped.
  const PagedRow& first = pass.rows[tile.row + tile.first / times];
  int from = begin;
  if (layer.window > 0) from = max(begin, (first.slot - 63 - layer.window) / kKeys * kKeys);
  Sums<kChunks> sums;
  const auto add = [&](int slot, const uint16_t* keys, const uint16_t* values) {
    if (slot + kKeys <= from) return;
    add_keys<T>(sums, queries, seen, layer, keys, values, slot, tile.slots, pass.d);
  };
  static_assert(kWarps * kKeys == kPagedSlots);  // so every step has a cache block of its own
  if constexpr (kChunks <= 2) {
    const uint64_t* blocks = pass.blocks + first.table + begin / kPagedSlots;
    uint64_t next = *blocks;
    for (int slot = begin + warp * kKeys; slot < end; slot += kPagedSlots) {
      const uint64_t block = next;
      if (slot + kPagedSlots < end) next = *++blocks;  // a step ahead of its use
      add(slot, side_in(pass, layer.layer, 0, kv_head, block), side_in(pass, layer.layer, 1, kv_head, block));
    }
  } else {  // there are no registers for it
    for (int slot = begin + warp * kKeys; slot < end; slot += kPagedSlots)
      add(slot, side_of(pass, layer.layer, 0, kv_head, first.table, slot / kPagedSlots),
          side_of(pass, layer.layer, 1, kv_head, first.table, slot / kPagedSlots));
  }
  for (int h = 0; h < 2; ++h) {
    const float total = quad_sum(sums.total[h]);
    if (member == 0) most[warp][group + 8 * h] = sums.most[h], totals[warp][group + 8 * h] = total;
  }
  __syncthreads();
  // The warps add their sums in a fixed order, so that the result does not depend on which warp finishes first.
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) {
      for (int h = 0; h < 2; ++h) {
        const int query = group + 8 * h;
        float largest = most[0][query];
        for (int other = 1; other < kWarps; ++other) largest = fmaxf(largest, most[other][query]);
        const float factor = weight_of(sums.most[h], largest);
#pragma unroll
        for (int c = 0; c < kChunks; ++c)
#pragma unroll
          for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              float& sum = merged[query][64 * c + 8 * (2 * member + e) + i];
              sum = (w == 0 ? 0.0f : sum) + sums.values[c][i][2 * h + e] * factor;
            }
      }
    }
    __syncthreads();
  }
  float* part = part_of(pass, tile, kv_head, blockIdx.z);
  for (int i = static_cast<int>(threadIdx.x); i < tile.queries * pass.d; i += kWarps * 32)
    part[i] = merged[i / pass.d][i % pass.d];
  for (int query = static_cast<int>(threadIdx.x); query < tile.queries; query += kWarps * 32) {
    float largest = most[0][query], total = 0;
    for (int w = 1; w < kWarps; ++w) largest = fmaxf(largest, most[w][query]);
    for (int w = 0; w < kWarps; ++w) total += totals[w][query] * weight_of(most[w][query], largest);
    part[kPagedQueries * pass.d + 2 * query] = largest;
    part[kPagedQueries * pass.d + 2 * query + 1] = total;
  }
}

// What each warp of a merge keeps of the splits of its query: the sums of weights, and their factors.
struct MergeMemory {
  float totals[kWarps][kMostSplits], factors[kWarps][kMostSplits];
};

// Merges the splits of each query. There is one block per query, kv head and tile.
template <class T>
__global__ void __launch_bounds__(kWarps * 32) merge_splits(PagedPass pass, T* __restrict__ out) {
  let_next_kernel_start();
  const PagedTile tile = pass.tiles[blockIdx.x / kPagedQueries];
  const int query = static_cast<int>(blockIdx.x % kPagedQueries), kv_head = static_cast<int>(blockIdx.y);
  if (query >= tile.queries) return;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            splits = (tile.slots + tile.split - 1) / tile.split, times = pass.heads / pass.kv_heads;
  const int64_t row = tile.row + (tile.first + query) / times, head = kv_head * times + (tile.first + query) % times;
  auto& memory = *static_cast<MergeMemory*>(shared_memory());
  float (&totals)[kMostSplits] = memory.totals[warp], (&factors)[kMostSplits] = memory.factors[warp];
  float most = -INFINITY, largest = -INFINITY;
  if (lane < splits) {
    const float* state = part_of(pass, tile, kv_head, lane) + kPagedQueries * pass.d + 2 * query;
    most = largest = state[0], totals[lane] = state[1];
  }
  for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, offset));
  if (lane < splits) factors[lane] = weight_of(most, largest);
  __syncwarp();
  float total = 0;
  for (int split = 0; split < splits; ++split) total += totals[split] * factors[split];
  for (int at = static_cast<int>(threadIdx.x); at < pass.d; at += kWarps * 32) {
    float sum = 0;
#pragma unroll 8
    for (int split = 0; split < splits; ++split)
      sum += part_of(pass, tile, kv_head, split)[query * pass.d + at] * factors[split];
    out[(row * pass.heads + head) * pass.d + at] = narrow<T>(sum / total);
  }
}

}  // namespace

int launch_paged_attention(CudaDtype dtype, const PagedPass& pass, const PagedLayer& layer, Stream stream) {
  if (pass.num_rows == 0) return 0;
  if (pass.d % 8 != 0 || pass.d > kMaxPagedHead || pass.heads % pass.kv_heads != 0 || pass.num_splits > kMostSplits ||
      pass.num_tiles > INT32_MAX / kPagedQueries)
    return static_cast<int>(cudaErrorInvalidValue);
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t numbers = int64_t{2} * pass.num_rows * pass.kv_heads * pass.d;
    if (layer.k) {
      if (const int code = launch(stream, dim3(static_cast<unsigned>((numbers + kThreads - 1) / kThreads)), kThreads, 0,
                                  write_slots, pass, static_cast<int64_t>(layer.layer),
                                  static_cast<const uint16_t*>(layer.k), static_cast<const uint16_t*>(layer.v)))
        return code;
    }
    const auto size = [](int32_t n) { return static_cast<unsigned>(n); };
    const dim3 blocks(size(pass.num_tiles), size(pass.kv_heads), size(pass.num_splits));
    const auto attend = [&](auto chunks) {
      return launch(stream, blocks, kWarps * 32, sizeof(SplitMemory<chunks>), attend_split<T, chunks>, pass, layer);
    };
    const int code = pass.d <= 64    ? attend(std::integral_constant<int, 1>{})
                     : pass.d <= 128 ? attend(std::integral_constant<int, 2>{})
                                     : attend(std::integral_constant<int, 4>{});
    if (code != 0) return code;
    return launch(stream, dim3(size(pass.num_tiles * kPagedQueries), size(pass.kv_heads)), kWarps * 32,
                  sizeof(MergeMemory), merge_splits<T>, pass, static_cast<T*>(layer.out));
  });
}

}  // namespace specdec::kernels::cuda
