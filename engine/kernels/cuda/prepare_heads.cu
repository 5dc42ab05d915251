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

// The numbers of one head, normalised if `weight` is given. All lanes of a warp construct it together.
template <class T>
class Head {
 public:
  __device__ Head(const T* in, const T* weight, float eps, int d) : in_(in), weight_(weight) {
    if (!weight) return;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float total = 0;  // summed in the same order as in rms_norm
    for (int at = 0; at < d; at += 32) {
      const float x = at + lane < d ? widen(in[at + lane]) : 0.0f;
      float squares = x * x;
      for (int offset = 16; offset > 0; offset /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, offset);
      total += squares;
    }
    scale_ = rsqrtf(total / static_cast<float>(d) + eps);
  }
  __device__ T operator[](int i) const {
    return weight_ ? narrow<T>(widen(narrow<T>(widen(in_[i]) * scale_)) * widen(weight_[i])) : in_[i];
  }

 private:
  const T *in_, *weight_;
  float scale_ = 1;
};

template <class T>
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
  const Head<T> values(in, static_cast<const T*>(is_query ? heads.q_norm : heads.k_norm), heads.eps, d);
  const int half = heads.rotated / 2;
  for (int at = lane; at < half; at += 32) {
    const float a = widen(values[at]), b = widen(values[at + half]), c = widen(narrow<T>(heads.cos[row * half + at])),
                s = widen(narrow<T>(heads.sin[row * half + at]));
    out[at] = narrow<T>(widen(narrow<T>(a * c)) - widen(narrow<T>(b * s)));
    out[at + half] = narrow<T>(widen(narrow<T>(b * c)) + widen(narrow<T>(a * s)));
  }
  for (int at = 2 * half + lane; at < d; at += 32) out[at] = values[at];
}

}  // namespace

int launch_prepare_heads(CudaDtype dtype, const PagedPass& pass, const PagedHeads& heads, Stream stream) {
  if (pass.num_rows == 0) return 0;
  if (heads.rotated % 2 != 0 || heads.rotated > pass.d) return static_cast<int>(cudaErrorInvalidValue);
  const int64_t units = static_cast<int64_t>(pass.num_rows) * (pass.heads + 2 * pass.kv_heads);
  return with_16_bits(dtype, [&](auto type) {
    using T = decltype(type);
    return launch(stream, dim3(static_cast<unsigned>((units + kWarps - 1) / kWarps)), kWarps * 32, 0, prepare<T>, pass,
                  heads);
  });
}

}  // namespace specdec::kernels::cuda
