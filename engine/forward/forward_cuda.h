// Runs a decoder's pass over new tokens of cached sequences in our own CUDA kernels: nine launches per layer, and one
// upload for any number of passes.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "engine/forward/cuda_layers.h"
#include "engine/forward/cuda_rows.h"
#include "engine/forward/device_upload.h"
#include "engine/forward/forward.h"
#include "engine/forward/pass_graphs.h"
#include "engine/kernels/cuda.h"

namespace specdec::model {

// Returns the library whose kernels run a decoder's passes, or null if the decoder is not supported. Supported are
// 16-bit decoders (also with quantised matrices) whose layers are like Llama's: norms before attention and before a
// dense feed-forward part with SiLU.
const kernels::CudaLibrary* cuda_pass_library(const Decoder& decoder);
// Returns whether cuda_pass() supports this pass: the decoder is supported, and few_causal_rows() is true.
bool cuda_pass_applies(const Decoder& decoder, std::span<const SequencePart> parts);
// Runs forward() in CUDA kernels, without checking its arguments. Returns fp32 logits [Σ num_logits, rows of lm_head].
at::Tensor cuda_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                     const std::vector<int64_t>& layers);

// Returns whether our kernels support a pass over these parts, each of which is one sequence's tokens. Each part must
// have at most 64 tokens, and in its tree mask no token may see a later one. All parts together must have at most
// kernels::kMaxProductRows tokens. The caches must have this dtype.
bool few_causal_rows(std::span<const SequencePart> parts, at::ScalarType dtype);
// Reserves slots for a part (one sequence's tokens) in its KV cache, and adds the part to a pass (a CudaPass or a
// CudaHeadPass).
template <class Pass>
void add_part(const SequencePart& part, int64_t num_logits, Pass& pass) {
  const auto count = static_cast<int64_t>(part.tokens.size());
  part.cache->reserve(part.cache->length() + count);
  at::Tensor mask;
  std::span<const bool> allowed;
  if (part.tree_mask.defined()) {
    mask = part.tree_mask.to(at::kCPU).contiguous();
    allowed = {mask.const_data_ptr<bool>(), static_cast<size_t>(count * count)};
  }
  pass.add({part.cache, part.cache->length(), part.tokens, num_logits, allowed, part.positions});
}

// One pass of a decoder. CudaRows documents how its rows are described.
class CudaPass {
 public:
  // `decoder` must be supported by cuda_pass_library(), and must outlive the pass.
  explicit CudaPass(const Decoder& decoder) : layers_(decoder), rows_(decoder.config) {}

  void add(const CudaRows::Part& part) { rows_.add(part); }
  int64_t num_rows() const { return graphs_ ? num_rows_ : rows_.num_rows(); }  // excludes a graph's padding rows
  // Adds the pass to an upload; no part can be added to the pass after that. `graphs`, if given, must belong to this
  // decoder and outlive the pass; run() launches one of these graphs if they support the pass. `live` and `may_rest`
  // are documented at CudaRows::describe().
  void describe(DeviceUpload& upload, PassGraphs* graphs = nullptr, int32_t live = 1, bool may_rest = false);
  size_t id_place(int64_t row) const { return rows_.id_place(row); }
  size_t live_place() const { return rows_.live_place(); }
  // Runs the pass and returns its logits [num_logits, rows of lm_head] in the embeddings' dtype. If several ranks hold
  // the decoder, the columns of all ranks are gathered. If the pass runs as a graph, the next pass may overwrite its
  // results, including the states that the observer receives. If `layers` is not empty, the observer is called only for
  // these layers. A pass with an observer and without `layers` does not run as a graph. Commits nothing to the caches.
  at::Tensor run(const DeviceUpload& upload, const HiddenObserver& observer = {},
                 const std::vector<int64_t>& layers = {}) const;

 private:
  at::Tensor run_alone(const DeviceUpload& upload, const HiddenObserver& observer,
                       const std::vector<int64_t>& layers) const;

  CudaLayers layers_;
  CudaRows rows_;
  int64_t num_rows_ = 0;  // set by describe()
  PassGraphs* graphs_ = nullptr;
};

}  // namespace specdec::model
