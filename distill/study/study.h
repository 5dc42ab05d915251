// A study answers a question about runs by means of several small runs: what a run will bring (forecast.h), or which
// kind of draft is best (comparison.h). It has a folder in RUN, a run of its own for each part, and one result file. It
// is resumed in the same way as a run.
#pragma once

#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/draft_speed.h"
#include "base/progress.h"
#include "base/statistics.h"
#include "base/verdict.h"
#include "distill/run/run.h"
#include "distill/settings/options.h"

namespace specdec::distill {

// Measures the costs of a draft and how much of what it drafts is accepted, on the prompts of the held-out requests
// that have these ids.
using MeasureSpeed = std::function<DraftSpeed(const std::filesystem::path& draft, const std::vector<std::string>& ids)>;

struct StudyTools {
  MeasureSpeed speed;  // empty: no speed is predicted
  const Clock& clock;
  ProgressFn progress;
};

struct StudyKind {
  std::string name;    // "forecast": RUN/forecast/ holds the runs, RUN/forecast.json is the result
  std::string schema;  // "distill_forecast"
};
// Does `work`, which returns the result without its start and duration, and sets its verdict. The study's folder is
// locked. A finished study of the same options and inputs is returned as it is. Throws Error(kUsage) if the study was
// begun with others; a study that fails before the first checkpoint of its first run leaves nothing.
DistillResult run_study(const DistillOptions& options, const StudyKind& kind, const Json& given, const Json& inputs,
                        const std::function<Json(Verdict& verdict)>& work, const Clock& clock);

// Returns paths and digests of everything that the runs read: target, data, drafts that are models or configurations,
// files of the teacher, rejects. Throws Error(kUsage), naming `flag`, if acceptance cannot be measured
// because the target has no weights.
Json study_inputs(const DistillOptions& options, const std::string& flag);

// A finished run of a study.
struct StudyPart {
  std::filesystem::path directory;
  Json result, scores;  // result.json and scores.json
};
// Does the run unless it is finished. Throws Error(kData) if it measured no acceptance.
StudyPart run_part(const DistillOptions& options, const ProgressFn& progress, const Clock& clock);

// Returns the requests that judged every run: under a time limit their number may differ.
std::set<std::string> common_requests(std::span<const StudyPart> parts);

// Returns an interval or a figure for JSON; values that are not finite become null.
Json number_or_null(double value);
Json figure_json(const Estimate& estimate);

}  // namespace specdec::distill
