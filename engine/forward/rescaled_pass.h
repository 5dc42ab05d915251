// Passes over cached sequences for models whose rope scaling depends on the length of the text (rope.h).
#pragma once

#include <span>

#include "engine/forward/forward.h"

namespace specdec::model {

// Runs forward() for a model whose rope scaling depends on the length of the text, with the same arguments, result and
// errors. Each row that needs logits is computed under the rope scaling of the text up to this row. If the cached
// tokens have another scaling, they are recomputed.
at::Tensor rescaled_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                         const std::vector<int64_t>& layers);

// Runs one pass of parts without checking them, each under the scaling of its cache. Implemented in forward.cpp.
at::Tensor one_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer,
                    const std::vector<int64_t>& layers);

}  // namespace specdec::model
