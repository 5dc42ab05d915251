// The rows of one pass, described on the host before the values of all its tokens are known: their tokens, places in
// the caches and angles. Passes that share an upload are run after it was sent; several can be described before the
// first is run.
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

// What a pass reads, in the device's memory.
struct CudaPassInputs {
  at::Tensor ids;                        // [rows] int32
  std::array<const float*, 2> cos, sin;  // [rows, half] of the global rope and of the local one
  kernels::PagedPass paged;              // with room for the sums of its splits
};

class CudaRows {
 public:
  // The configuration is that of a decoder or of an EAGLE-3 head's layer, and must outlive the rows.
  explicit CudaRows(const DecoderConfig& config);

  // Rows that continue a cache, which must have room for them (KvCache::reserve()).
  struct Part {
    const KvCache* cache;
    int64_t length;                   // tokens that the cache holds when the pass runs
    std::span<const int32_t> tokens;  // those that are not known yet may have any value
    int64_t num_logits;               // of the last tokens
    // [T, B + T]: whether a row sees each of the last B tokens before these rows and each of these; empty: causal.
    std::span<const bool> allowed = {};
    std::span<const int64_t> positions = {};  // empty: length, length + 1, …
  };
  void add(const Part& part);
  // Adds absent rows and empty tiles up to these numbers (kernels::PagedRows::pad()). Only describe() may follow.
  void pad(int64_t rows, int64_t tiles);
  int64_t num_rows() const { return static_cast<int64_t>(ids_.size()); }  // those of pad() included
  int64_t num_logits() const { return static_cast<int64_t>(logit_rows_.size()); }
  const kernels::PagedRows& paged() const { return paged_; }

  // `live` is the number of sequences that need the results of the pass; it may change in the upload until the pass
  // runs. With `may_rest`, the pass skips what takes long if the number is 0 by then (kernels::PagedPass::live).
  void describe(DeviceUpload& upload, int32_t live = 1, bool may_rest = false);
  bool may_rest() const { return may_rest_; }
  size_t live_place() const { return at_.live; }  // in the upload, an int32_t
  // Returns where in the upload the id of a row is, an int32_t.
  size_t id_place(int64_t row) const { return at_.ids + static_cast<size_t>(row) * sizeof(int32_t); }
  // piece() returns the part of the upload that the pass reads, as uint8. inputs() returns the pass's inputs, which lie
  // in `memory`: this piece or a copy of it. `sums` is fp32 with part_values(paged().num_parts()) numbers.
  at::Tensor piece(const DeviceUpload& upload) const;
  CudaPassInputs inputs(const at::Tensor& memory, const at::Tensor& sums) const;
  // Returns how many numbers the sums of `parts` splits take (PagedPass::parts).
  static int64_t part_values(const DecoderConfig& config, int64_t parts);
  // Returns the rows of x [rows, …] that have logits; x itself if all have.
  at::Tensor with_logits(const at::Tensor& x, const DeviceUpload& upload) const;

 private:
  const DecoderConfig& config_;
  kernels::PagedRows paged_;
  std::vector<int32_t> ids_, logit_rows_;
  // The first element is for the global rope, the second for the local one. turns_ says whether a layer uses it.
  std::array<bool, 2> turns_ = {};
  std::array<std::vector<float>, 2> cos_, sin_;
  // Where the arrays begin in the upload, in ascending order.
  struct Places {
    size_t ids, live, rows, tiles;
    std::array<size_t, 2> cos, sin;
    size_t blocks, end, logit_rows;
  };
  Places at_ = {};
  bool may_rest_ = false;
};

}  // namespace specdec::model
