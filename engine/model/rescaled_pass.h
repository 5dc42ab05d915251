// Incremental passes of models whose rope scaling depends on the length of the text (rope.h).
#pragma once

#include <span>

#include "engine/model/forward.h"

namespace specdec::model {

// Has forward()'s arguments, result and errors. Each row with logits is computed under the scaling of a text that ends
// there; if its cache has another scaling, the cached tokens are recomputed.
at::Tensor rescaled_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer);

// Runs one pass of checked parts, each under the scaling of its cache. Implemented in forward.cpp.
at::Tensor one_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer);

}  // namespace specdec::model
