#include "engine/forward/cuda_rows.h"

#include "engine/cache/block_pool.h"
#include "engine/config/rope.h"
#include "engine/forward/angle_table.h"

namespace specdec::model {

CudaRows::CudaRows(const DecoderConfig& config) : config_(config), paged_(config.num_heads, config.num_kv_heads) {
  static_assert(BlockPool::kTokens == kernels::kPagedSlots);
  for (const LayerConfig& layer : config_.layers) {
    turns_[0] |= layer.rope == LayerRope::kGlobal;
    turns_[1] |= layer.rope == LayerRope::kLocal;
  }
}

void CudaRows::add(const Part& part) {
  const auto count = static_cast<int64_t>(part.tokens.size());
  paged_.add(part.cache->blocks(), part.length, count, part.allowed);
  for (int64_t i = 0; i < count; ++i) {
    if (i >= count - part.num_logits) logit_rows_.push_back(static_cast<int32_t>(ids_.size()));
    ids_.push_back(part.tokens[static_cast<size_t>(i)]);
    const int64_t position = part.positions.empty() ? part.length + i : part.positions[static_cast<size_t>(i)];
    for (const size_t which : {0, 1}) {
      if (!turns_[which]) continue;
      const RopeConfig& rope = which == 0 ? config_.rope : config_.local_rope;
      AngleTable& table = angle_table(rope, config_.head_dim, rope_varies(rope) ? part.cache->rope_rescale() : 0);
      const size_t at = cos_[which].size(), half = static_cast<size_t>(table.half());
      cos_[which].resize(at + half);
      sin_[which].resize(at + half);
      table.copy(position, cos_[which].data() + at, sin_[which].data() + at);
    }
  }
}

void CudaRows::pad(int64_t rows, int64_t tiles) {
  for (const size_t which : {0, 1}) {
    const size_t angles = cos_[which].size() / ids_.size() * static_cast<size_t>(rows);
    cos_[which].resize(angles);
    sin_[which].resize(angles);
  }
  paged_.pad(rows, tiles);
  ids_.resize(static_cast<size_t>(rows));
}

void CudaRows::describe(DeviceUpload& upload, int32_t live, bool may_rest) {
  may_rest_ = may_rest;
  at_.ids = upload.add(ids_);
  at_.live = upload.add(std::vector<int32_t>{live});
  at_.rows = upload.add(paged_.rows());
  at_.tiles = upload.add(paged_.tiles());
  for (const size_t which : {0, 1}) {
    at_.cos[which] = upload.add(cos_[which]);
    at_.sin[which] = upload.add(sin_[which]);
  }
  at_.blocks = upload.add(paged_.blocks());
  at_.end = at_.blocks + paged_.blocks().size() * sizeof(uint64_t);
  at_.logit_rows = upload.add(logit_rows_);
}

at::Tensor CudaRows::piece(const DeviceUpload& upload) const {
  return upload.tensor(at_.ids, static_cast<int64_t>(at_.end - at_.ids), at::kByte);
}

CudaPassInputs CudaRows::inputs(const at::Tensor& memory, const at::Tensor& sums) const {
  const auto narrow = [](int64_t n) { return static_cast<int32_t>(n); };
  auto* const base = static_cast<char*>(memory.mutable_data_ptr());
  const auto place = [&](size_t at) { return base + (at - at_.ids); };
  CudaPassInputs out;
  out.ids = at::from_blob(base, {num_rows()}, memory.options().dtype(at::kInt));
  for (const size_t which : {0, 1}) {
    out.cos[which] = reinterpret_cast<const float*>(place(at_.cos[which]));
    out.sin[which] = reinterpret_cast<const float*>(place(at_.sin[which]));
  }
  out.paged = {.rows = reinterpret_cast<const kernels::PagedRow*>(place(at_.rows)),
               .tiles = reinterpret_cast<const kernels::PagedTile*>(place(at_.tiles)),
               .blocks = reinterpret_cast<const uint64_t*>(place(at_.blocks)),
               .parts = sums.mutable_data_ptr<float>(),
               .live = may_rest_ ? reinterpret_cast<const int32_t*>(place(at_.live)) : nullptr,
               .num_rows = narrow(num_rows()),
               .num_tiles = narrow(static_cast<int64_t>(paged_.tiles().size())),
               .num_splits = paged_.num_splits(),
               .heads = narrow(config_.num_heads),
               .kv_heads = narrow(config_.num_kv_heads),
               .d = narrow(config_.head_dim)};
  return out;
}

int64_t CudaRows::part_values(const DecoderConfig& config, int64_t parts) {
  return parts * config.num_kv_heads * kernels::kPagedQueries * (config.head_dim + 2);
}

at::Tensor CudaRows::with_logits(const at::Tensor& x, const DeviceUpload& upload) const {
  if (num_logits() == x.size(0)) return x;
  return x.index_select(0, upload.tensor(at_.logit_rows, num_logits(), at::kInt));
}

}  // namespace specdec::model
