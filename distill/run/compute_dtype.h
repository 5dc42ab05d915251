// Chooses the dtype in which a run computes. The other commands keep the checkpoint's; training multiplies so many more
// matrices that a slow dtype would cost the whole run.
#pragma once

#include <string>

#include "base/cpu_features.h"
#include "engine/config/config.h"

namespace specdec::distill {

struct ComputeDtype {
  std::string flag;    // the value for --dtype of target and draft: "fp32", …; "auto" keeps each checkpoint's own
  std::string reason;  // one sentence for the user
};
// `flag` is --dtype, which always wins. With auto, a CPU computes 16-bit checkpoints in fp32 unless both models are in
// bf16 and the CPU multiplies bf16; a GPU computes in the checkpoints' own dtypes. `target` is null if no target is
// read.
ComputeDtype choose_compute_dtype(const std::string& flag, const model::DecoderConfig* target,
                                  const model::DecoderConfig& draft, at::Device device, const CpuFeatures& cpu);

// Returns the dtype in which the draft is written: that of the checkpoint it began as, unless --dtype narrows it
// further than that.
at::ScalarType published_dtype(at::ScalarType computed, at::ScalarType checkpoint);

}  // namespace specdec::distill
