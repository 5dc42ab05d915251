// `specdec distill --compare`: trains several kinds of drafts for the same share of the limits, predicts the speed-up
// of each from measured costs, and ranks the drafts by speed-up. Acceptance is not enough for a ranking, because it
// ignores a draft's cost.
#pragma once

#include <string>
#include <vector>

#include "distill/study/forecast.h"

namespace specdec::distill {

// Compares the drafts of options.compared. Writes comparison.json (schema "specdec.distill_comparison/1") and
// comparison/I-KIND/, the run of each kind, into options.out. With options.resume finished runs are not repeated, and a
// finished comparison is returned unchanged. Throws what run() throws.
DistillResult compare(const DistillOptions& options, const StudyTools& tools);

}  // namespace specdec::distill
