// Incremental passes of models whose rope scaling depends on the length of the text (rope.h).
#pragma once

#include <span>

#include "engine/model/forward.h"

namespace specdec::model {

// Arguments, result and errors as forward(). Each wanted row is computed under the scaling of a text that ends with it;
// where that is not its cache's scaling, the cache's tokens are computed anew.
at::Tensor rescaled_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer);

// One pass of checked parts, each under the scaling of its cache. forward.cpp.
at::Tensor one_pass(const Decoder& decoder, std::span<const SequencePart> parts, const HiddenObserver& observer);

}  // namespace specdec::model
