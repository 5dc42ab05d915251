// Writes labels (the target's probabilities or hidden states) with the target loaded in this process.
#pragma once

#include "distill/labels/label_options.h"

namespace specdec::distill {

// Labels the rows of options.data in options.out. A row longer than the target's context is labelled up to the
// context's end. Throws what LabelWriter throws; Error(kData) if the data has another tokenizer or the target gives no
// finite logits; Error(kNetwork) when a stop is requested. A later run with --resume keeps the labels written so far.
LabelResult label_by_target(const LabelOptions& options, const ProgressFn& progress);

}  // namespace specdec::distill
