#include "distill/run/run_directory.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "base/file.h"
#include "base/format.h"
#include "base/shell.h"
#include "base/version.h"
#include "distill/settings/time_plan.h"

namespace specdec::distill {

namespace {

// Returns whether `name` is that of a file or folder that a run writes. run.json and .lock are not included, because
// they are removed separately.
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

std::string place_of(const std::string& path) { return fs::weakly_canonical(fs::absolute(path)).string(); }

// Replaces a relative path in the text of an option by the absolute, canonical path. A relative path, as in
// "model:small", would name another model in another working directory.
std::string settled(const std::string& text) {
  for (const std::string kind : {"model:", "config:", "labels:", "hidden:"})
    if (text.starts_with(kind)) return kind + place_of(text.substr(kind.size()));
  return text;
}

// Returns options or inputs with canonical paths. An input that has a digest is identified by the digest, so its path
// is removed and the input may be moved.
Json settled(const Json& json) {
  if (json.is_string()) return settled(json.get<std::string>());
  if (json.is_array()) {
    Json out = Json::array();
    for (const Json& item : json) out.push_back(settled(item));
    return out;
  }
  if (!json.is_object()) return json;
  const bool known = json.contains("digest") || json.contains("tokenizer");
  Json out = Json::object();
  for (const auto& [key, value] : json.items()) {
    if (key == "path" && known) continue;
    if (key == "rejects" && value.is_string())
      out[key] = place_of(value.get<std::string>());
    else
      out[settled(key)] = settled(value);
  }
  return out;
}

// Returns the flag that sets an option of run.json.
std::string flag_of(std::string key) {
  static const std::map<std::string, std::string> kOthers = {
      {"learning_rate", "lr"}, {"time_limit_seconds", "time-limit"}, {"teacher_cache_mib", "teacher-cache"}};
  if (const auto other = kOthers.find(key); other != kOthers.end()) return "--" + other->second;
  std::replace(key.begin(), key.end(), '_', '-');
  return "--" + key;
}

std::string value_text(const std::string& key, const Json& value) {
  if (value.is_null()) return "not given";
  if (key == "time_limit_seconds" && value.is_number()) return duration_text(value.get<double>());
  if (value.is_number_float()) return number_text(value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Returns the first digits of the input's digest, for a message.
std::string digest_text(const Json& input) {
  if (input.is_null()) return "none";
  if (!input.is_object()) return value_text("", input).substr(0, 12);
  for (const char* key : {"id", "digest", "tokenizer"})
    if (const std::string digest = input.contains(key) && input[key].is_string() ? input[key].get<std::string>() : "";
        !digest.empty())
      return digest.substr(0, 12);
  return one_line(input.dump()).substr(0, 80);
}

// Returns the flags whose values or files differ, with both values: "--epochs (3 then, 5 now)"; "" if none differ.
std::string differences(const Json& then, const Json& now) {
  std::string text;
  const auto add = [&](const std::string& flag, const std::string& before, const std::string& after) {
    text += (text.empty() ? "" : ", ") + flag + " (" + before + " then, " + after + " now)";
  };
  const auto in = [](const Json& object, const char* part, const std::string& key) {
    const auto found = object.find(part);
    return found != object.end() && found->is_object() ? settled(*found).value(key, Json()) : Json();
  };
  for (const char* part : {"options", "inputs"}) {
    std::set<std::string> keys;
    for (const Json* side : {&then, &now})
      if (const auto found = side->find(part); found != side->end())
        for (const auto& [key, value] : found->items()) keys.insert(key);
    for (const std::string& key : keys) {
      const Json before = in(then, part, key), after = in(now, part, key);
      if (before == after) continue;
      if (part == std::string("options"))
        add(flag_of(key == "draft" && after.is_array() ? "compare" : key), value_text(key, before),
            value_text(key, after));
      else if (key == "drafts" && before.is_object() && after.is_object())
        for (const auto& [draft, digest] : after.items()) {
          if (before.value(draft, Json()) != digest)
            add("--draft " + draft, "digest " + digest_text(before.value(draft, Json())), digest_text(digest));
        }
      else
        add(flag_of(key), "digest " + digest_text(before), digest_text(after));
    }
  }
  return text;
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
    // These files are removed last: if an earlier removal fails, the directory still counts as a run and --resume
    // accepts it.
    for (const char* last : {"run.json", ".lock"}) remove_tree(run_ / last);
    std::error_code not_empty;  // RUN stays if it has files that no run wrote
    if (!existed_) fs::remove(run_, not_empty);
  } catch (const std::exception&) {  // ignored: the error that ended the run is the one to report
  }
}

void RunDirectory::enter(const Json& options, const Json& inputs) const {
  const Json now = {{"schema", "specdec.distill_run/1"},
                    {"options", settled(options)},
                    {"inputs", inputs},
                    {"tool_version", kToolVersion}};
  if (!is_new_) {
    const std::string differing = differences(read_json(run_ / "run.json"), now);
    if (!differing.empty())
      throw Error(ErrorKind::kUsage, run_.string() +
                                         ": --resume needs the options and inputs the run was started with; these "
                                         "differ: " +
                                         differing);
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
