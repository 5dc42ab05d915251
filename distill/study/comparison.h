// `specdec distill --compare`: trains several kinds of drafts for the same share of the limits, measures what each
// would save, and ranks them by that: acceptance alone says nothing about a draft's cost.
#pragma once

#include <string>
#include <vector>

#include "distill/study/forecast.h"

namespace specdec::distill {

// Compares the drafts of options.compare. RUN = options.out gets comparison.json (schema
// "specdec.distill_comparison/1") and compare/I-KIND/, the run of each kind. With options.resume the runs that are done
// are not trained again, and a finished comparison is returned as it is. Throws what run() throws.
DistillResult compare(const DistillOptions& options, const StudyTools& tools);

}  // namespace specdec::distill
