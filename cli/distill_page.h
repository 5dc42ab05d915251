// Renders a training run as a page: loss and acceptance over the run, the choice of the checkpoint, and the verdict.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/page/page.h"
#include "base/schema/distill_report.h"

namespace specdec::cli {

struct Curve {
  std::vector<double> step, value;  // steps ascending
};
// Reads RUN/metrics.jsonl into curves by "<kind>/<name>", such as "train/loss". Steps that were rolled back, or run
// again after a resume, count once, with their latest value. A curve of more than 500 steps is averaged to at most 500
// points. Lines that are not metrics are skipped (a crash may truncate the last line). A file that cannot be read gives
// no curves.
std::map<std::string, Curve> read_curves(const std::filesystem::path& file);

Page distill_page(const DistillReport& result, const std::map<std::string, Curve>& curves);

}  // namespace specdec::cli
