// The incremental pass of a decoder in our own CUDA kernels: nine launches a layer, and one upload for any number of
// passes.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kernels/cuda.h"
#include "engine/kernels/paged_rows.h"
#include "engine/model/device_upload.h"
#include "engine/model/forward.h"

namespace specdec::model {

// Returns the library whose kernels run a decoder's passes, or null if they do not cover it. They cover 16-bit decoders
// (with int8 products and codes, too) of Llama's layers: norms before attention and before a dense feed-forward part
// with SiLU.
const kernels::CudaLibrary* cuda_pass_library(const Decoder& decoder);
// Returns whether cuda_pass() can run: the decoder is covered, no part has more than 64 tokens or a tree mask under
// which a token sees a later one, and all parts together have at most kernels::kMaxProductRows tokens.
bool cuda_pass_applies(const Decoder& decoder, std::span<const SequencePart> parts);
// As forward(), for checked parts. Returns fp32 logits [Σ num_logits, rows of lm_head].
at::Tensor cuda_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer);

// One pass, described on the host before the values of all its tokens are known. Passes that share an upload are run
// after it was sent, in any order; several can be described before the first is run.
class CudaPass {
 public:
  // `decoder` must be covered, and outlive the pass.
  explicit CudaPass(const Decoder& decoder);

  // Rows that continue a cache, which must have room for them (KvCache::reserve()).
  struct Rows {
    const KvCache* cache;
    int64_t length;                           // tokens that the cache holds when the pass runs
    std::span<const int32_t> tokens;          // those that are not known yet may have any value
    int64_t num_logits;                       // of the last tokens
    std::span<const bool> allowed = {};       // [T, T]: whether a row sees each of these rows; empty: causal
    std::span<const int64_t> positions = {};  // empty: length, length + 1, …
  };
  void add(const Rows& rows);
  int64_t num_rows() const { return static_cast<int64_t>(ids_.size()); }
  int64_t num_logits() const { return static_cast<int64_t>(logit_rows_.size()); }
  // Adds the pass to an upload. Nothing can be added to the pass after that.
  void describe(DeviceUpload& upload);
  // Returns where in the upload the id of a row is, an int32_t.
  size_t id_place(int64_t row) const { return at_.ids + static_cast<size_t>(row) * sizeof(int32_t); }
  // Runs the pass and returns its logits [num_logits, rows of lm_head], with ranks the columns of all side by side, in
  // the embeddings' dtype. Commits nothing.
  at::Tensor run(const DeviceUpload& upload, const HiddenObserver& observer = {}) const;

 private:
  struct Product;
  void multiply(const Product& product) const;
  void norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& out) const;
  void add_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& order,
                   const at::Tensor& sum, const at::Tensor& work) const;
  void project(const at::Tensor& x, const LayerWeights& w, const at::Tensor& out) const;
  void check(int32_t code, const char* what) const;

  const Decoder& decoder_;
  const DecoderConfig& config_;
  const kernels::CudaLibrary& library_;
  kernels::CudaDtype dtype_;
  int32_t device_;
  kernels::PagedRows rows_;
  std::vector<int32_t> ids_, logit_rows_;
  // Of the global rope and the local one, for the layers that use them.
  std::array<bool, 2> turns_ = {};
  std::array<std::vector<float>, 2> cos_, sin_;
  struct Places {
    size_t ids, logit_rows, rows, tiles, blocks;
    std::array<size_t, 2> cos, sin;
  };
  Places at_ = {};
};

}  // namespace specdec::model
