// A study is a group of small runs that answers one question: what acceptance a run will reach (forecast.h), or which
// kind of draft is best (comparison.h). A study has a folder in RUN with one run per part, and one result file.
// --resume continues a study as it continues a run.
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
#include "base/schema/distill_report.h"
#include "base/statistics.h"
#include "base/verdict.h"
#include "distill/run/run.h"
#include "distill/settings/options.h"

namespace specdec::distill {

// Measures the costs and the acceptance of a draft, on the prompts of the held-out requests with these ids.
using MeasureSpeed = std::function<DraftSpeed(const std::filesystem::path& draft, const std::vector<std::string>& ids)>;

struct StudyTools {
  MeasureSpeed speed;  // empty: no speed is predicted
  const Clock& clock;
  ProgressFn progress;
};

struct StudyKind {
  std::string name;    // "forecast": RUN/forecast/ holds the runs, RUN/forecast.json is the result
  std::string schema;  // name of the result's schema, such as "distill_forecast"
};
// When a study started. end() fills the fields of a result that all studies have.
struct StudyStart {
  std::string started;
  double begin = 0;
  const Clock& clock;
  const Json& options;
  const Json& inputs;
  // Sets start, duration until now, options and inputs of a report.
  void end(DistillHead& head) const {
    head.started = started;
    head.seconds = clock.seconds() - begin;
    head.options = options;
    head.inputs = inputs;
  }
};
// Locks the study's folder and calls `work`, which returns the result. If the study is finished with the same options
// and inputs, returns its result without calling `work`. Throws Error(kUsage) if the study was begun with other options
// or inputs. A study that fails before the first checkpoint of its first run leaves no files.
DistillResult run_study(const DistillOptions& options, const StudyKind& kind, const Json& given, const Json& inputs,
                        const std::function<Json(const StudyStart& start)>& work, const Clock& clock);

// Returns paths and digests of everything that the runs read: target, data, drafts that are models or configurations,
// the teacher's files, rejects. Throws Error(kUsage), naming `flag`, if the target has no weights, because acceptance
// then cannot be measured.
Json study_inputs(const DistillOptions& options, const std::string& flag);

// A finished run that is part of a study.
struct StudyPart {
  std::filesystem::path directory;
  DistillReport result;  // result.json, with scores by acceptance and figures of the training
  Json scores;           // scores.json
};
// Does the run if it is not finished, and reads its result. Throws Error(kData) if the run measured no acceptance.
StudyPart run_part(const DistillOptions& options, const ProgressFn& progress, const Clock& clock);

// Returns the ids of the held-out requests that were measured in every run. Under a time limit the runs may measure
// different numbers of requests.
std::set<std::string> common_requests(std::span<const StudyPart> parts);

}  // namespace specdec::distill
