// Describes the rows of a pass on the host (tokens, cache slots, rope angles) even if some token ids are not known yet.
// Several passes can be described and uploaded together, and then run one after the other.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cache/kv_cache.h"
#include "engine/config/config.h"
#include "engine/forward/device_upload.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/paged_rows.h"

namespace specdec::model {

// The inputs of a pass, in device memory.
struct CudaPassInputs {
  at::Tensor ids;                        // [rows] int32
  std::array<const float*, 2> cos, sin;  // [rows, half] each, for the global and the local rope
  kernels::PagedPass paged;              // which keys each row sees, and workspace for attention
};

class CudaRows {
 public:
  // `config` is that of a decoder or of an EAGLE-3 head's layer, and must outlive this object.
  explicit CudaRows(const DecoderConfig& config);

  // One sequence's tokens in the pass. They continue its KV cache, which must have reserved slots for them
  // (KvCache::reserve()).
  struct Part {
    const KvCache* cache;
    int64_t length;                   // number of tokens that the cache holds when the pass runs
    std::span<const int32_t> tokens;  // tokens that are not known yet may have any value
    int64_t num_logits;               // number of last tokens that need logits
    // [T, B + T]: whether a row sees each of the last B cached tokens and each of the T new rows; empty: causal.
    std::span<const bool> allowed = {};
    std::span<const int64_t> positions = {};  // empty: length, length + 1, …
  };
  void add(const Part& part);
  // Pads the pass with rows and tiles (groups of rows) that compute nothing, up to `rows` rows and `tiles` tiles
  // (kernels::PagedRows::pad()). Afterwards no part can be added.
  void pad(int64_t rows, int64_t tiles);
  int64_t num_rows() const { return static_cast<int64_t>(ids_.size()); }  // includes rows added by pad()
  int64_t num_logits() const { return static_cast<int64_t>(logit_rows_.size()); }
  const kernels::PagedRows& paged() const { return paged_; }

  // Adds the rows to an upload. `live` is the number of sequences that need the results of the pass; kernels may change
  // the number in the upload before the pass runs. With `may_rest`, the pass skips expensive work if the number is then
  // 0 (kernels::PagedPass::live).
  void describe(DeviceUpload& upload, int32_t live = 1, bool may_rest = false);
  bool may_rest() const { return may_rest_; }
  size_t live_place() const { return at_.live; }  // offset of the number `live` (int32_t) in the upload
  // Returns the offset in the upload of a row's token id, an int32_t.
  size_t id_place(int64_t row) const { return at_.ids + static_cast<size_t>(row) * sizeof(int32_t); }
  // piece() returns the part of the upload that the pass reads, as uint8. inputs() returns pointers to the inputs of
  // the pass within `memory`, which is the result of piece() or a copy of it. `sums` is fp32 with
  // part_values(paged().num_parts()) numbers.
  at::Tensor piece(const DeviceUpload& upload) const;
  CudaPassInputs inputs(const at::Tensor& memory, const at::Tensor& sums) const;
  // Returns how many fp32 numbers attention needs as workspace if it divides the keys of the pass into `parts` splits
  // (PagedPass::parts).
  static int64_t part_values(const DecoderConfig& config, int64_t parts);
  // Returns the rows of x [rows, …] that need logits; x itself if all do.
  at::Tensor with_logits(const at::Tensor& x, const DeviceUpload& upload) const;

 private:
  const DecoderConfig& config_;
  kernels::PagedRows paged_;
  std::vector<int32_t> ids_, logit_rows_;
  // Index 0 is the global rope, index 1 the local rope. turns_[i] tells whether any layer uses rope i.
  std::array<bool, 2> turns_ = {};
  std::array<std::vector<float>, 2> cos_, sin_;
  // Offsets of the arrays in the upload, in ascending order.
  struct Places {
    size_t ids, live, rows, tiles;
    std::array<size_t, 2> cos, sin;
    size_t blocks, end, logit_rows;
  };
  Places at_ = {};
  bool may_rest_ = false;
};

}  // namespace specdec::model
