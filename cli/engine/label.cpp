// Runs a target over a data directory and writes the labels for training (base/schema/label_index.h).
#include "base/clock.h"
#include "base/model_directory.h"
#include "cli/data_label.h"
#include "cli/engine/runners.h"
#include "distill/teacher/label_target.h"

namespace specdec::cli {

int run_label(const Global& global, const distill::LabelOptions& given) {
  distill::LabelOptions options = given;
  distill::validate(options);
  options.target = resolve_model(options.target).directory.string();
  const SystemClock clock;
  const double start = clock.seconds();
  const distill::LabelResult done = distill::label_by_target(options, make_progress(global));
  print_labels(global, options, done, clock.seconds() - start);
  return 0;
}

}  // namespace specdec::cli
