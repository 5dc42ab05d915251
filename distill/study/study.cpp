#include "distill/study/study.h"

#include "base/file.h"
#include "base/fingerprint.h"
#include "base/full_digest.h"
#include "base/safetensors.h"
#include "base/sha256.h"
#include "data/shards/shard_reader.h"
#include "distill/run/output.h"
#include "distill/run/run_directory.h"

namespace specdec::distill {

namespace {

// Returns a digest of the names and sizes of a directory's files.
std::string digest_of_names(const fs::path& directory) {
  std::set<std::string> lines;
  for (const auto& entry : fs::directory_iterator(directory))
    if (entry.is_regular_file() && !entry.path().filename().string().starts_with('.'))
      lines.insert(entry.path().filename().string() + " " + std::to_string(entry.file_size()) + "\n");
  std::string text;
  for (const std::string& line : lines) text += line;
  return sha256_hex(text);
}

// Returns the fingerprint of a model. A model without a tokenizer, such as a head from another trainer, has no
// fingerprint: then returns a digest of config and weights.
std::string digest_of_model(const fs::path& directory) {
  if (fs::exists(directory / "tokenizer.json")) return fingerprint_model(directory).id;
  return sha256_hex(sha256_file(directory / "config.json") + full_weights_digest(directory));
}

}  // namespace

DistillResult run_study(const DistillOptions& options, const StudyKind& kind, const Json& given, const Json& inputs,
                        const std::function<Json(const StudyStart& start)>& work, const Clock& clock) {
  const std::string started = format_utc(clock.unix_seconds());
  const double begin = clock.seconds();
  const fs::path out = options.out, file = out / (kind.name + ".json");
  const bool existed = fs::exists(out);
  try {
    RunDirectory directory(out / kind.name);
    directory.enter(given, inputs);
    const auto exit_code_of = [&](const Json& report) {
      const auto verdict = verdict_named(json_string(report, "verdict", file.string(), ErrorKind::kData));
      return exit_code(verdict.value_or(Verdict::kInconclusive));
    };
    if (fs::exists(file)) {
      const Json done = read_json(file);
      require_schema(done, kind.schema, 1, file.string());
      // The result file may come from other inputs: the user may have removed the study's folder but not this file.
      const Json then = {{"inputs", done.value("inputs", Json())}, {"options", done.value("options", Json())}};
      if (differing_keys(then, {{"inputs", inputs}, {"options", given}}).empty()) return {done, exit_code_of(done)};
    }
    const Json json = work({started, begin, clock, given, inputs});
    write_file_atomic(file, json.dump(2) + "\n");
    directory.keep();
    return {json, exit_code_of(json)};
  } catch (...) {
    std::error_code not_empty;  // not_empty is ignored: a RUN with other files stays
    if (!existed) fs::remove(out, not_empty);
    throw;
  }
}

Json study_inputs(const DistillOptions& options, const std::string& flag) {
  const bool weights = has_weights(options.target);
  if (!parse_loss(options.loss).needs_target() && !weights)
    throw Error(ErrorKind::kUsage, flag + ": acceptance is measured, and " + options.target +
                                       " has no weights to measure it with: give the whole target");
  Json inputs = {{"target",
                  {{"path", options.target},
                   {"id", weights ? fingerprint_model(options.target).id : ""},
                   {"tokenizer", tokenizer_digest(options.target)}}},
                 {"data", {{"path", options.data}, {"digest", data::ShardReader(options.data).digest()}}}};
  for (const std::string& draft : options.compared.empty() ? std::vector{options.draft} : options.compared) {
    const DraftSpec spec = parse_draft_spec(draft);
    if (spec.kind == "model") inputs["drafts"][draft] = digest_of_model(spec.argument);
    if (spec.kind == "config") inputs["drafts"][draft] = sha256_file(spec.argument);
  }
  const TeacherSpec teacher = parse_teacher(options.teacher);
  if (teacher.kind == TeacherSpec::Kind::kLabels)
    inputs["teacher"] = {{"path", teacher.argument},
                         {"digest", sha256_file(fs::path(teacher.argument) / "index.json")}};
  if (teacher.kind == TeacherSpec::Kind::kHidden)
    inputs["teacher"] = {{"path", teacher.argument}, {"digest", digest_of_names(teacher.argument)}};
  if (!options.rejects.empty())
    inputs["rejects"] = {{"path", options.rejects}, {"digest", digest_of_names(options.rejects)}};
  return inputs;
}

StudyPart run_part(const DistillOptions& options, const ProgressFn& progress, const Clock& clock) {
  StudyPart part{options.out, {}, {}};
  const fs::path result = part.directory / "result.json", scores = part.directory / "scores.json";
  if (!fs::exists(result)) run(options, progress, clock);
  part.result = read_fields<DistillReport>(read_json(result), result.string());
  if (!part.result.scores || !part.result.scores->by_acceptance || !part.result.training)
    throw Error(ErrorKind::kData, options.out + ": " + part.result.reason);
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
