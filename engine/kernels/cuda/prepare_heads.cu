// Prepares the projected queries, keys and values of one layer for attention in one launch: norms of queries and keys,
// rotary embedding, and the writing of keys and values to their cache slots. Each warp handles one head of one row. The
// results equal those of the kernels rms_norm and rope (rows.cu) bit for bit.
#include <ptx.h>

#include "engine/kernels/cuda/device.h"
#include "engine/kernels/cuda/launch.h"
#include "engine/kernels/cuda/paged_slots.h"

namespace specdec::kernels::cuda {

namespace {

constexpr int kWarps = 4;

// Returns the factor by which a head is normalised. All lanes of a warp call it together, and add in the order of
// rms_norm.
template <class T, bool kVectors>
__device__ float norm_scale(const T* in, float eps, int d) {
  static_assert(kMaxPagedHead <= 8 * 32);
  float numbers[8], squares = 0;
  load_numbers<kVectors>(in, 8 * (static_cast<int>(threadIdx.x) % 32), d, numbers);
#pragma unroll
  for (int i = 0; i < 8; ++i) squares += numbers[i] * numbers[i];
  for (int offset = 16; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
  return rsqrtf(squares / static_cast<float>(d) + eps);
}

template <class T, bool kVectors>
__global__ void __launch_bounds__(kWarps * 32) prepare(PagedPass pass, PagedHeads heads) {
  const int64_t unit = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, all = pass.heads + 2 * pass.kv_heads, d = pass.d;
  const int64_t row = unit / all;
  if (row >= pass.num_rows) return;
  const int head = static_cast<int>(unit % all);
  const bool is_query = head < pass.heads, is_value = head >= pass.heads + pass.kv_heads;
  const T* in = static_cast<const T*>(heads.projected) + unit * d;
  T* out = nullptr;
  if (is_query) {
    out = static_cast<T*>(heads.q) + (row * pass.heads + head) * d;
  } else {
    const PagedRow& place = pass.rows[row];
    if (place.slot < 0) return;
    uint16_t* side = side_of(pass, heads.layer, is_value ? 1 : 0, (head - pass.heads) % pass.kv_heads, place.table,
                             place.slot / kPagedSlots);
    out = reinterpret_cast<T*>(side) + static_cast<int64_t>(place.slot % kPagedSlots) * d;
  }
  if (is_value) {
    for (int at = lane; at < d; at += 32) out[at] = in[at];
    return;
  }
  const T* weight = static_cast<const T*>(is_query ? heads.q_norm : heads.k_norm);
  const int half = heads.rotated / 2;
  // All that the rotation reads is on its way while the norm is computed.
  constexpr int kPairs = static_cast<int>(kMaxPagedHead) / 2 / 32;  // of a lane
  float low[kPairs], high[kPairs], low_weight[kPairs], high_weight[kPairs], cos[kPairs], sin[kPairs];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int at = lane + 32 * j;
    if (at >= half) break;
    low[j] = widen(in[at]), high[j] = widen(in[at + half]);
    if (weight) low_weight[j] = widen(weight[at]), high_weight[j] = widen(weight[at + half]);
    cos[j] = heads.cos[row * half + at], sin[j] = heads.sin[row * half + at];
  }
  const float scale = weight ? norm_scale<T, kVectors>(in, heads.eps, d) : 1.0f;
  const auto normed = [&](float x, float factor) {
    return weight ? widen(narrow<T>(widen(narrow<T>(x * scale)) * factor)) : x;
  };
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int at = lane + 32 * j;
    if (at >= half) break;
    const float a = normed(low[j], low_weight[j]), b = normed(high[j], high_weight[j]), c = widen(narrow<T>(cos[j])),
                s = widen(narrow<T>(sin[j]));
    out[at] = narrow<T>(widen(narrow<T>(a * c)) - widen(narrow<T>(b * s)));
    out[at + half] = narrow<T>(widen(narrow<T>(b * c)) + widen(narrow<T>(a * s)));
  }
  for (int at = 2 * half + lane; at < d; at += 32)
    out[at] = narrow<T>(normed(widen(in[at]), weight ? widen(weight[at]) : 0.0f));
}

}  // namespace

int launch_prepare_heads(CudaDtype dtype, const PagedPass& pass, const PagedHeads& heads, Stream stream) {
  if (pass.num_rows == 0) return 0;
  if (heads.rotated % 2 != 0 || heads.rotated > pass.d || pass.d > kMaxPagedHead)
    return static_cast<int>(cudaErrorInvalidValue);
  const int64_t units = static_cast<int64_t>(pass.num_rows) * (pass.heads + 2 * pass.kv_heads);
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, dim3(static_cast<unsigned>((units + kWarps - 1) / kWarps)), kWarps * 32, 0,
                  pass.d % 8 == 0 && reinterpret_cast<uintptr_t>(heads.projected) % 16 == 0 ? prepare<T, true>
                                                                                            : prepare<T, false>,
                  pass, heads);
  });
}

}  // namespace specdec::kernels::cuda
