// Runs the pass of an EAGLE-3 head over new tokens of cached sequences in our own CUDA kernels.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>

#include "engine/forward/cuda_kernels.h"
#include "engine/forward/cuda_rows.h"
#include "engine/forward/device_upload.h"
#include "engine/forward/eagle_forward.h"
#include "engine/kernels/cuda.h"

namespace specdec::model {

// Returns the library whose kernels run a head's passes, or null if the head is not in a 16-bit dtype.
const kernels::CudaLibrary* cuda_head_library(const EagleHead& head);
// Returns whether cuda_head_pass() supports these parts for a head.
bool cuda_head_applies(const EagleHead& head, std::span<const SequencePart> parts);

// One pass of an EAGLE-3 head. CudaRows documents how its rows are described.
class CudaHeadPass {
 public:
  // `head` must be supported by cuda_head_library(), and must outlive the pass.
  explicit CudaHeadPass(const EagleHead& head);

  void add(const CudaRows::Part& part) { rows_.add(part); }
  int64_t num_rows() const { return rows_.num_rows(); }
  // Adds the pass to an upload; the arguments are those of CudaRows::describe().
  void describe(DeviceUpload& upload, int32_t live = 1, bool may_rest = false) {
    rows_.describe(upload, live, may_rest);
  }
  size_t id_place(int64_t row) const { return rows_.id_place(row); }
  size_t live_place() const { return rows_.live_place(); }
  // Runs the pass on hidden states [num_rows, E], which are contiguous and have the head's dtype. Returns the output of
  // the rows that need logits. Commits nothing to the caches.
  EagleOutput run(const DeviceUpload& upload, const at::Tensor& hidden) const;
  // Returns eagle_logits() for up to kernels::kMaxProductRows rows of EagleOutput::normed from run().
  at::Tensor score(const at::Tensor& normed, const DeviceUpload& upload) const;

 private:
  const EagleHead& head_;
  CudaKernels kernels_;
  CudaRows rows_;
};

// Runs eagle_pass() in CUDA kernels, for parts that satisfy cuda_head_applies(). Returns the output of all rows.
EagleOutput cuda_head_pass(const EagleHead& head, std::span<const SequencePart> parts, const at::Tensor& hidden);
// Returns eagle_logits() for a supported head and up to kernels::kMaxProductRows rows.
at::Tensor cuda_head_logits(const EagleHead& head, const at::Tensor& normed);

}  // namespace specdec::model
