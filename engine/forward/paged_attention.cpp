#include "engine/forward/paged_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/kernels/cuda_errors.h"
#include "engine/kernels/paged_rows.h"

namespace specdec::model {

namespace {

using kernels::PagedRows;

// Returns whether no token sees a later token under a tree mask [T, T].
bool is_causal(const at::Tensor& mask) {
  if (!mask.defined()) return true;
  const at::Tensor rows = mask.to(at::kCPU).contiguous();
  const bool* sees = rows.const_data_ptr<bool>();
  const int64_t n = rows.size(0);
  for (int64_t i = 0; i < n; ++i)
    if (std::any_of(sees + i * n + i + 1, sees + (i + 1) * n, [](bool x) { return x; })) return false;
  return true;
}

// Concatenates the parts' arrays for one upload. Each array begins at a multiple of 8 bytes.
struct Bytes {
  std::vector<char> all;
  template <class T>
  size_t add(const std::vector<T>& values) {
    const size_t at = (all.size() + 7) / 8 * 8, size = values.size() * sizeof(T);
    all.resize(at + size);
    if (size > 0) std::memcpy(all.data() + at, values.data(), size);
    return at;
  }
};

// Returns x itself if it is contiguous and aligned to 16 bytes, else a contiguous, aligned copy.
at::Tensor aligned(const at::Tensor& x) {
  const bool good = x.is_contiguous() && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return good ? x : x.clone(at::MemoryFormat::Contiguous);
}

}  // namespace

bool PagedAttention::covers(const DecoderConfig& config, at::ScalarType dtype) {
  return (dtype == at::kBFloat16 || dtype == at::kHalf) && config.head_dim % 8 == 0 &&
         config.head_dim <= kernels::kMaxPagedHead;
}

bool PagedAttention::takes(const SequencePart& part, at::ScalarType dtype) {
  return static_cast<int64_t>(part.tokens.size()) <= PagedRows::kMaxRows && part.cache->dtype() == dtype &&
         is_causal(part.tree_mask);
}

PagedAttention::PagedAttention(const kernels::CudaLibrary& library, const DecoderConfig& config,
                               std::span<const SequencePart> parts, at::ScalarType dtype, at::Device device)
    : library_(library), dtype_(dtype == at::kHalf ? kernels::CudaDtype::kHalf : kernels::CudaDtype::kBFloat16) {
  static_assert(BlockPool::kTokens == kernels::kPagedSlots);
  PagedRows rows(config.num_heads, config.num_kv_heads);
  std::vector<int64_t> index;
  int64_t first = 0;
  for (const SequencePart& part : parts) {
    const auto count = static_cast<int64_t>(part.tokens.size());
    takes_.push_back(takes(part, dtype));
    if (takes_.back()) {
      const int64_t length = part.cache->length();
      part.cache->reserve(length + count);
      std::span<const bool> allowed;
      at::Tensor mask;
      if (part.tree_mask.defined()) {
        mask = part.tree_mask.to(at::kCPU).contiguous();
        allowed = {mask.const_data_ptr<bool>(), static_cast<size_t>(count * count)};
      }
      rows.add(part.cache->blocks(), length, count, allowed);
      for (int64_t i = 0; i < count; ++i) index.push_back(first + i);
    }
    first += count;
  }
  const auto taken = static_cast<int64_t>(index.size());
  if (taken != first) index_ = at::tensor(index, at::kLong).to(device);
  Bytes bytes;
  const size_t at_rows = bytes.add(rows.rows()), at_tiles = bytes.add(rows.tiles()),
               at_blocks = bytes.add(rows.blocks());
  uploaded_ = at::from_blob(bytes.all.data(), static_cast<int64_t>(bytes.all.size()), at::kByte)
                  .to(device, at::kByte, false, /*copy=*/true);
  const auto narrow = [](int64_t n) { return static_cast<int32_t>(n); };
  const auto tiles = static_cast<int64_t>(rows.tiles().size());
  work_ = at::empty({rows.num_parts() * config.num_kv_heads * kernels::kPagedQueries * (config.head_dim + 2)},
                    at::TensorOptions(device).dtype(at::kFloat));
  const auto* memory = static_cast<const char*>(uploaded_.const_data_ptr());
  pass_ = {.rows = reinterpret_cast<const kernels::PagedRow*>(memory + at_rows),
           .tiles = reinterpret_cast<const kernels::PagedTile*>(memory + at_tiles),
           .blocks = reinterpret_cast<const uint64_t*>(memory + at_blocks),
           .parts = work_.mutable_data_ptr<float>(),
           .live = nullptr,
           .num_rows = narrow(taken),
           .num_tiles = narrow(tiles),
           .num_splits = rows.num_splits(),
           .heads = narrow(config.num_heads),
           .kv_heads = narrow(config.num_kv_heads),
           .d = narrow(config.head_dim)};
}

void PagedAttention::attend(int64_t layer, const kernels::AttentionOptions& options, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, const at::Tensor& out) const {
  if (pass_.num_rows == 0) return;
  const auto mine = [&](const at::Tensor& x) { return aligned(takes_all() ? x : x.index_select(0, index_)); };
  const at::Tensor queries = mine(q), keys = mine(k), values = mine(v),
                   result = takes_all() ? out : at::empty_like(queries);
  const double scale = options.scale != 0 ? options.scale : 1 / std::sqrt(static_cast<double>(pass_.d));
  const kernels::PagedLayer one = {.layer = static_cast<int32_t>(layer),
                                   .scale = static_cast<float>(scale),
                                   .soft_cap = static_cast<float>(options.soft_cap),
                                   .window = static_cast<int32_t>(options.window),
                                   .q = queries.const_data_ptr(),
                                   .k = keys.const_data_ptr(),
                                   .v = values.const_data_ptr(),
                                   .out = result.mutable_data_ptr()};
  const int32_t device = out.is_cpu() ? 0 : out.get_device();
  if (const int32_t code = library_.paged_attention(dtype_, device, &pass_, &one))
    kernels::throw_cuda_error(code, "attention could not be launched", library_.error_text(code));
  if (!takes_all()) out.index_copy_(0, index_, result);
}

}  // namespace specdec::model
