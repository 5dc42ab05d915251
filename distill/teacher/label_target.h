// Writes labels by a target in this process.
#pragma once

#include "distill/labels/label_options.h"

namespace specdec::distill {

// Labels the rows of options.data in options.out. A row longer than the target's context is labelled as far as that.
// Throws what LabelWriter throws; Error(kData) if the data has another tokenizer or the target gives no finite logits;
// Error(kNetwork) when a stop is requested: --resume goes on with the labels that are complete.
LabelResult label_by_target(const LabelOptions& options, const ProgressFn& progress);

}  // namespace specdec::distill
