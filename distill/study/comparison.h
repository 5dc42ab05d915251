// `specdec distill --compare`: trains several kinds of drafts, each for an equal share of the limits, predicts the
// speed-up of each draft from measured costs, and ranks the drafts by speed-up. Acceptance alone cannot rank drafts,
// because it ignores what a draft costs.
#pragma once

#include <string>
#include <vector>

#include "distill/study/forecast.h"

namespace specdec::distill {

// Compares the drafts of options.compared. Writes comparison.json (schema "specdec.distill_comparison/1") into
// options.out, and the run of the I-th KIND into comparison/I-KIND/. With options.resume, finished runs are not
// repeated, and the result of a finished comparison is returned unchanged. Throws what run() throws.
DistillResult compare(const DistillOptions& options, const StudyTools& tools);

}  // namespace specdec::distill
