// What a training run did, as a page: loss and acceptance over the run, the choice of the checkpoint, and the verdict.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "deploy/report/page.h"

namespace specdec::cli {

struct Curve {
  std::vector<double> step, value;  // steps ascending
};
// RUN/metrics.jsonl by "<kind>/<name>", such as "train/loss". Steps that were rolled back or run again after a resume
// count once, as they were run last; of many steps the means of at most 500 stretches are kept. A line that is no
// metric is skipped (a crash may cut the last one); of a file that cannot be read there are no curves.
std::map<std::string, Curve> read_curves(const std::filesystem::path& file);

// `result`: schema specdec.distill/1.
deploy::Page distill_page(const Json& result, const std::map<std::string, Curve>& curves);

}  // namespace specdec::cli
