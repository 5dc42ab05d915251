// Attention on CUDA for a pass over cached sequences. The kernel reads keys and values in place from the caches'
// blocks.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "engine/config/config.h"
#include "engine/forward/forward.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/ops.h"

namespace specdec::model {

class PagedAttention {
 public:
  // Reserves room for the parts' tokens in their caches, and uploads the description of the pass that the kernel reads.
  // A part is skipped (takes() returns false for it) if it has too many tokens, as in prefill, or a tree mask under
  // which a token sees a later one. `device` is the device of queries and caches. Throws as KvCache::reserve() does.
  PagedAttention(const kernels::CudaLibrary& library, const DecoderConfig& config, std::span<const SequencePart> parts,
                 at::ScalarType dtype, at::Device device);

  // Returns whether the kernel supports a decoder's heads, with queries and caches of this dtype.
  static bool covers(const DecoderConfig& config, at::ScalarType dtype);

  // Returns whether the kernel supports a part (one sequence's tokens in a pass) with this dtype: the part has few
  // tokens, and none of them sees a later token.
  static bool takes(const SequencePart& part, at::ScalarType dtype);

  bool takes(size_t part) const { return takes_[part]; }
  bool takes_all() const { return !index_.defined(); }
  // Writes the keys and values of one layer to the caches, then computes attention into `out`. Processes only the rows
  // of parts for which takes() is true. All tensors have all rows of the pass: q, out [T, H, D]; k, v [T, G, D]. `out`
  // is contiguous.
  void attend(int64_t layer, const kernels::AttentionOptions& options, const at::Tensor& q, const at::Tensor& k,
              const at::Tensor& v, const at::Tensor& out) const;

 private:
  const kernels::CudaLibrary& library_;
  kernels::CudaDtype dtype_;
  std::vector<bool> takes_;
  at::Tensor index_;            // rows of the parts that takes() accepts; undefined: all rows
  at::Tensor uploaded_, work_;  // memory to which pass_ points
  kernels::PagedPass pass_ = {};
};

}  // namespace specdec::model
