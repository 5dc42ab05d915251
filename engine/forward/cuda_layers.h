// Runs a decoder's pass in our own CUDA kernels: the embedding, nine launches per layer, the final norm and lm_head.
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
  // `decoder` must be supported by cuda_pass_library(), and must outlive this object.
  explicit CudaLayers(const Decoder& decoder);

  // Memory for the activations of a pass, each [rows, width] in the embeddings' dtype. Consecutive passes can share it.
  struct Room {
    at::Tensor x, h, projected, q, attended, inner;
    Room first(int64_t rows) const;  // the same memory, but only `rows` rows
  };
  Room make_room(int64_t rows) const;
  // Runs the layers for all rows of the room, and leaves the residual stream in room.x. Calls the observer after the
  // layers in `layers`, or after every layer if the list is empty. The observer receives room.x itself, which the next
  // layer overwrites. Allocates nothing unless several ranks hold the decoder.
  void run(const CudaPassInputs& inputs, const Room& room, const HiddenObserver& observer = {},
           const std::vector<int64_t>& layers = {}) const;
  // Writes the logits of rows x [n, E] of the residual stream to `logits` [n, rows of lm_head]; `normed` has the shape
  // of x and is overwritten. `live`: see kernels::PagedPass::live.
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
