// The incremental pass of an EAGLE-3 head in our own CUDA kernels.
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

// Returns the library whose kernels run a head's passes, or null if they do not cover it: they cover 16-bit heads.
const kernels::CudaLibrary* cuda_head_library(const EagleHead& head);
// As cuda_pass_applies(), of a head.
bool cuda_head_applies(const EagleHead& head, std::span<const SequencePart> parts);

// One pass of a head. See CudaRows for how it is described.
class CudaHeadPass {
 public:
  // `head` must be covered, and outlive the pass.
  explicit CudaHeadPass(const EagleHead& head);

  void add(const CudaRows::Part& part) { rows_.add(part); }
  int64_t num_rows() const { return rows_.num_rows(); }
  // As CudaRows::describe().
  void describe(DeviceUpload& upload, int32_t live = 1, bool may_rest = false) {
    rows_.describe(upload, live, may_rest);
  }
  size_t id_place(int64_t row) const { return rows_.id_place(row); }
  size_t live_place() const { return rows_.live_place(); }
  // Runs the pass on hidden states [num_rows, E], contiguous and of the head's dtype, and returns what the rows that
  // have logits give. Commits nothing.
  EagleOutput run(const DeviceUpload& upload, const at::Tensor& hidden) const;
  // As eagle_logits(), for what run() returned of up to kernels::kMaxProductRows rows.
  at::Tensor score(const at::Tensor& normed, const DeviceUpload& upload) const;

 private:
  const EagleHead& head_;
  CudaKernels kernels_;
  CudaRows rows_;
};

// As eagle_pass(), for parts to which the kernels apply. Returns the output of all rows.
EagleOutput cuda_head_pass(const EagleHead& head, std::span<const SequencePart> parts, const at::Tensor& hidden);
// As eagle_logits(), of a covered head and up to kernels::kMaxProductRows rows.
at::Tensor cuda_head_logits(const EagleHead& head, const at::Tensor& normed);

}  // namespace specdec::model
