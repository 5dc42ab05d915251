// Attention of a pass on CUDA: the kernel reads keys and values where they lie in the caches' blocks.
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
  // Reserves room for the parts' tokens in their caches, and uploads what the kernel needs to know of the pass. A part
  // is left out (takes() is false) if it has too many tokens, or a tree mask under which a token sees a later one; such
  // parts are prompts. `device` is where queries and caches are. Throws as KvCache::reserve() does.
  PagedAttention(const kernels::CudaLibrary& library, const DecoderConfig& config, std::span<const SequencePart> parts,
                 at::ScalarType dtype, at::Device device);

  // Returns whether the kernel exists for a decoder's heads, with queries and caches of this dtype.
  static bool covers(const DecoderConfig& config, at::ScalarType dtype);

  // Returns whether the kernel attends for the part of a pass with this dtype: a few tokens, none of which sees a later
  // one.
  static bool takes(const SequencePart& part, at::ScalarType dtype);

  bool takes(size_t part) const { return takes_[part]; }
  bool takes_all() const { return !index_.defined(); }
  // For the parts that it takes, writes the keys and values of one layer into their caches, and then writes the
  // attention of their rows into `out`. All tensors have all rows of the pass: q, out [T, H, D]; k, v [T, G, D]. `out`
  // is contiguous.
  void attend(int64_t layer, const kernels::AttentionOptions& options, const at::Tensor& q, const at::Tensor& k,
              const at::Tensor& v, const at::Tensor& out) const;

 private:
  const kernels::CudaLibrary& library_;
  kernels::CudaDtype dtype_;
  std::vector<bool> takes_;
  at::Tensor index_;            // the rows of the parts that it takes; undefined if these are all
  at::Tensor uploaded_, work_;  // memory that pass_ points into
  kernels::PagedPass pass_ = {};
};

}  // namespace specdec::model
