// The incremental pass on plain memory: what decode and verify run on a CPU.
#pragma once

#include "engine/model/forward.h"

namespace specdec::model {

// fp32, bf16 or int8 (caches, norms and embeddings fp32 or bf16) on a CPU, caches of the weights' dtype, reference not
// forced.
bool cpu_pass_applies(const Decoder& decoder, std::span<const SequencePart> parts);
// Arguments are checked by the caller. Logits of the rows that lm_head has.
at::Tensor cpu_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer);

}  // namespace specdec::model
