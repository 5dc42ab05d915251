#include "distill/study.h"

#include <cmath>

#include "base/file.h"
#include "base/fingerprint.h"
#include "base/version.h"
#include "data/shard_reader.h"
#include "distill/run_directory.h"

namespace specdec::distill {

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json figure_json(const Estimate& e) {
  return {{"value", number_or_null(e.value)}, {"ci", {number_or_null(e.ci.low), number_or_null(e.ci.high)}}};
}

DistillResult run_study(const DistillOptions& options, const StudyKind& kind, const Json& given, const Json& inputs,
                        const std::function<Json(Verdict& verdict)>& work, const Clock& clock) {
  const std::string started = format_utc(clock.unix_seconds());
  const double begin = clock.seconds();
  const fs::path out = options.out, file = out / (kind.name + ".json");
  const bool existed = fs::exists(out);
  try {
    RunDirectory directory(out / kind.name);
    directory.enter(given, inputs);
    Verdict verdict = Verdict::kInconclusive;
    if (fs::exists(file)) {
      const Json done = read_json(file);
      require_schema(done, kind.schema, 1, file.string());
      verdict = verdict_named(json_string(done, "verdict", file.string(), ErrorKind::kData)).value_or(verdict);
      return {done, exit_code(verdict)};
    }
    Json json = work(verdict);
    json.update({{"schema", "specdec." + kind.schema + "/1"},
                 {"verdict", verdict},
                 {"started", started},
                 {"seconds", clock.seconds() - begin},
                 {"tool_version", kToolVersion},
                 {"inputs", inputs},
                 {"options", given}});
    write_file_atomic(file, json.dump(2) + "\n");
    directory.keep();
    return {json, exit_code(verdict)};
  } catch (...) {
    std::error_code not_empty;  // the directory goes only if nothing was trained in it
    if (!existed) fs::remove(out, not_empty);
    throw;
  }
}

Json study_inputs(const DistillOptions& options, const std::string& flag) {
  const bool weights = has_weights(options.target);
  if (!parse_loss(options.loss).needs_target() && !weights)
    throw Error(ErrorKind::kUsage, flag + ": acceptance is measured, and " + options.target +
                                       " has no weights to measure it with: give the whole target");
  return {{"target",
           {{"path", options.target},
            {"id", weights ? fingerprint_model(options.target).id : ""},
            {"tokenizer", tokenizer_digest(options.target)}}},
          {"data", {{"path", options.data}, {"digest", data::ShardReader(options.data).digest()}}}};
}

StudyPart run_part(const DistillOptions& options, const ProgressFn& progress, const Clock& clock) {
  StudyPart part{options.out, {}, {}};
  const fs::path result = part.directory / "result.json", scores = part.directory / "scores.json";
  if (!fs::exists(result)) run(options, progress, clock);
  part.result = read_json(result);
  require_schema(part.result, "distill", 1, result.string());
  if (!part.result.contains("acceptance"))
    throw Error(ErrorKind::kData, options.out + ": " + part.result.value("reason", "acceptance was not measured"));
  part.scores = read_json(scores);
  require_schema(part.scores, "distill_scores", 1, scores.string());
  return part;
}

std::set<std::string> common_requests(std::span<const StudyPart> parts) {
  std::set<std::string> common;
  for (const StudyPart& part : parts) {
    std::set<std::string> judged;
    for (const Json& row : part.scores.at("rows"))
      if (row.at("after").is_number() && row.at("before").is_number()) judged.insert(row.at("id").get<std::string>());
    if (&part == parts.data()) common = judged;
    std::erase_if(common, [&](const std::string& id) { return judged.count(id) == 0; });
  }
  return common;
}

}  // namespace specdec::distill
