// Declares the CPU implementation of forward(), which works on plain memory. Decoding and verification on a CPU use it.
#pragma once

#include "engine/forward/forward.h"

namespace specdec::model {

// Returns whether cpu_pass() supports this pass. It needs contiguous fp32 or bf16 weights on a CPU; matrices may also
// be packed or int8. Caches must have the dtype of the embeddings, no layer may have both experts and mlp_out_norm, and
// the reference kernels must not be forced (kernels::force_reference()).
bool cpu_pass_applies(const Decoder& decoder, std::span<const SequencePart> parts);
// Runs the pass and commits its tokens to the caches. Does not check the arguments. Returns fp32 logits [Σ num_logits,
// rows of lm_head].
at::Tensor cpu_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                    const std::vector<int64_t>& layers);

}  // namespace specdec::model
