// Chooses the dtype in which a run computes. Other commands compute in the checkpoint's dtype. Training needs many more
// matrix products, so on a CPU that is slow in the checkpoint's dtype it uses a faster one.
#pragma once

#include <string>

#include "base/cpu_features.h"
#include "engine/config/config.h"

namespace specdec::distill {

struct ComputeDtype {
  std::string flag;    // value of --dtype for loading target and draft: "fp32", …; "auto" = each checkpoint's own dtype
  std::string reason;  // why this dtype was chosen, one sentence for the user
};
// Chooses the dtype for `flag`, the value of --dtype; any value but "auto" is used as it is. With "auto", a GPU
// computes in the checkpoints' own dtypes. A CPU computes 16-bit checkpoints in fp32, unless both models are in bf16
// and the CPU has instructions for bf16 products. `target` is null if the run needs no target.
ComputeDtype choose_compute_dtype(const std::string& flag, const model::DecoderConfig* target,
                                  const model::DecoderConfig& draft, at::Device device, const CpuFeatures& cpu);

// Returns the dtype in which the trained draft is saved: the dtype of its initial checkpoint, or the dtype of --dtype
// if that is narrower.
at::ScalarType published_dtype(at::ScalarType computed, at::ScalarType checkpoint);

}  // namespace specdec::distill
