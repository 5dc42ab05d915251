#include "distill/run/run_directory.h"

#include <vector>

#include "base/file.h"
#include "base/version.h"
#include "distill/run/output.h"

namespace specdec::distill {

namespace {

// Returns whether a file or folder of this name was written by a run. The names run.json and .lock are left out,
// because they are treated by themselves.
bool is_own(const std::string& name) {
  return name == "checkpoints" || name == "metrics.jsonl" || name == "draft" || name == kContextsFile ||
         name.starts_with("events.out.tfevents") || name == "result.json" || name == "scores.json" ||
         name == "report.html" || name == "report.md" || name == "mlflow.json";
}

void remove_own(const fs::path& run) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(run))
    if (is_own(entry.path().filename().string())) entries.push_back(entry.path());
  for (const fs::path& entry : entries) remove_tree(entry);
}

}  // namespace

RunDirectory::RunDirectory(std::filesystem::path run) : run_(std::move(run)), existed_(fs::exists(run_)) {
  make_private_directory(run_);
  lock_.emplace(run_ / ".lock");
  is_new_ = !has_begun(run_);
}

RunDirectory::~RunDirectory() {
  try {
    if (!is_new_ || has_begun(run_)) return;
    remove_own(run_);
    // These go last: whatever else is left, the directory stays one that --resume takes, and it stays locked.
    for (const char* last : {"run.json", ".lock"}) remove_tree(run_ / last);
    std::error_code not_empty;  // what others have put into it stays
    if (!existed_) fs::remove(run_, not_empty);
  } catch (const std::exception&) {  // the error that ended the run is the one to report
  }
}

void RunDirectory::enter(const Json& options, const Json& inputs) const {
  const Json now = {
      {"schema", "specdec.distill_run/1"}, {"options", options}, {"inputs", inputs}, {"tool_version", kToolVersion}};
  if (!is_new_) {
    Json then = read_json(run_ / "run.json");
    then["tool_version"] = now["tool_version"];
    const std::string keys = differing_keys(then, now);
    if (!keys.empty())
      throw Error(
          ErrorKind::kUsage,
          run_.string() + ": --resume needs the options and inputs the run was started with; these differ: " + keys);
    return;
  }
  remove_own(run_);
  write_file_atomic(run_ / "run.json", now.dump(2) + "\n");
}

bool RunDirectory::has_begun(const std::filesystem::path& run) {
  if (!fs::exists(run / "run.json")) return false;
  const auto has_step = [](const fs::path& directory) {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(directory / "checkpoints", none))
      if (entry.path().filename().string().starts_with("step-")) return true;
    return fs::exists(directory / "result.json");
  };
  if (has_step(run)) return true;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run, none))
    if (has_step(entry.path())) return true;
  return false;
}

Json RunDirectory::options_of(const fs::path& run) {
  if (!has_begun(run)) return nullptr;
  const fs::path file = run / "run.json";
  const Json then = read_json(file);
  if (!then.is_object() || !then.contains("options") || !then["options"].is_object())
    throw Error(ErrorKind::kData, file.string() + ": malformed: expected an object with the object \"options\"");
  return then["options"];
}

}  // namespace specdec::distill
