// `specdec distill --compare`: trains several kinds of drafts for the same share of the limits, predicts the speed-up
// of each from measured costs, and ranks them by it. Acceptance alone would not do, because it ignores a draft's cost.
#pragma once

#include <string>
#include <vector>

#include "distill/study/forecast.h"

namespace specdec::distill {

// Compares the drafts of options.compared. RUN = options.out gets comparison.json (schema
// "specdec.distill_comparison/1") and comparison/I-KIND/, the run of each kind. With options.resume the runs that are
// done are not trained again, and a finished comparison is returned as it is. Throws what run() throws.
DistillResult compare(const DistillOptions& options, const StudyTools& tools);

}  // namespace specdec::distill
