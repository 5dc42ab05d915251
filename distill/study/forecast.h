// `specdec distill --forecast`: predicts the acceptance that a run will reach, at a fraction of the run's cost. Trains
// the draft on nested samples of the training set, each with its share of the run's limits, and extrapolates the
// learning curve to all data.
#pragma once

#include "distill/study/study.h"

namespace specdec::distill {

// Forecasts the run that `options` describe. Writes forecast.json (schema "specdec.distill_forecast/1") into
// options.out, and the run on the sample of N rows into forecast/N/. With options.resume, finished runs are not
// repeated, and the result of a finished forecast is returned unchanged. Throws what run() throws, and Error(kUsage)
// for samples larger than the data or a run that does not measure acceptance.
DistillResult forecast(const DistillOptions& options, const StudyTools& tools);

}  // namespace specdec::distill
