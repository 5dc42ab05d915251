// The launches of a decoder's pass in our own CUDA kernels: the embedding, nine a layer, the last norm and the head.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "engine/forward/cuda_kernels.h"
#include "engine/forward/cuda_rows.h"
#include "engine/forward/forward.h"

namespace specdec::model {

class CudaLayers {
 public:
  // `decoder` must be one that cuda_pass_library() covers, and outlive this object.
  explicit CudaLayers(const Decoder& decoder);

  // Memory for the activations of a pass, [rows, width] in the embeddings' dtype. Several passes may use it, one after
  // the other.
  struct Room {
    at::Tensor x, h, projected, q, attended, inner;
    Room first(int64_t rows) const;  // of fewer rows, in the same memory
  };
  Room make_room(int64_t rows) const;
  // Runs the layers for as many rows as the room has, and leaves the residual stream in room.x. The observer is called
  // for `layers`, or for all layers if the list is empty. It sees room.x itself, which the next layer changes.
  // Allocates nothing unless several ranks hold the decoder.
  void run(const CudaPassInputs& inputs, const Room& room, const HiddenObserver& observer = {},
           const std::vector<int64_t>& layers = {}) const;
  // Writes the logits of rows x [n, E] of the residual stream to `logits` [n, rows of lm_head]; `normed` has the shape
  // of x and is overwritten. `live`: kernels::PagedPass::live.
  void score(const at::Tensor& x, const at::Tensor& normed, const at::Tensor& logits, const int32_t* live) const;

  const Decoder& decoder() const { return decoder_; }
  const CudaKernels& kernels() const { return kernels_; }

 private:
  void add_product(const CudaKernels::Product& product, const at::Tensor& work) const;

  const Decoder& decoder_;
  const DecoderConfig& config_;
  CudaKernels kernels_;
};

}  // namespace specdec::model
