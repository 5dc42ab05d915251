// Writes labels (the target's probabilities or hidden states) with the target loaded in this process.
#pragma once

#include "distill/labels/label_options.h"

namespace specdec::distill {

// Labels the rows of options.data in options.out. A row longer than the target's context gets labels up to the end of
// the context. A later run with --resume keeps the labels written so far. Throws what LabelWriter throws; Error(kData)
// if the data has another tokenizer or a logit of the target is not finite; Error(kNetwork), which means "run it
// again", when a stop is requested.
LabelResult label_by_target(const LabelOptions& options, const ProgressFn& progress);

}  // namespace specdec::distill
