// `specdec distill --forecast`: says what a run will bring before it is paid for. It trains the draft on nested samples
// of the training set, each with its share of the run's limits, and extends the learning curve to the whole data.
#pragma once

#include "distill/study/study.h"

namespace specdec::distill {

// Forecasts the run that `options` describe. RUN = options.out gets forecast.json (schema "specdec.distill_forecast/1")
// and forecast/N/, the run on each sample of N rows. With options.resume the samples that are done are not trained
// again, and a finished forecast is returned as it is. Throws what run() throws, and Error(kUsage) for samples larger
// than the data or a run that does not measure acceptance.
DistillResult forecast(const DistillOptions& options, const StudyTools& tools);

}  // namespace specdec::distill
