// The incremental pass on plain memory, which decode and verify run on a CPU.
#pragma once

#include "engine/model/forward.h"

namespace specdec::model {

// Whether cpu_pass() can run: fp32, bf16 or int8 weights on a CPU (norms, embeddings and caches fp32 or bf16), caches
// of the embeddings' dtype, and the reference not forced.
bool cpu_pass_applies(const Decoder& decoder, std::span<const SequencePart> parts);
// The caller must have checked the arguments. Returns the logits of all rows of lm_head.
at::Tensor cpu_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer);

}  // namespace specdec::model
