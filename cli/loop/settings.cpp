#include <glob.h>

#include <algorithm>

#include "base/clock.h"
#include "base/file.h"
#include "base/format.h"
#include "base/json.h"
#include "base/schema/package_manifest.h"
#include "cli/loop/loop.h"
#include "cli/suggestion.h"
#include "cli/toml_file.h"
#include "distill/settings/options.h"

namespace specdec::cli {

namespace {

std::string text_of(const toml::node& node, const std::string& where) {
  if (node.is_string()) {
    const std::string text = *node.value<std::string>();
    // A NUL would cut off an argument, and other control characters would change how --plan is displayed.
    if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }))
      throw Error(ErrorKind::kConfig, where + ": expected no control characters");
    return text;
  }
  if (node.is_integer()) return std::to_string(*node.value<int64_t>());
  if (node.is_floating_point()) return format("%.15g", *node.value<double>());
  throw Error(ErrorKind::kConfig, where + ": expected a string, a number, true or a list of them");
}

// Converts a stage's table to the flags of its command. key = value becomes --key value, key = true becomes --key, and
// a list becomes one flag per item.
std::vector<std::string> flags_of(const toml::table& table, const std::string& where) {
  std::vector<std::string> flags;
  for (const auto& [key_node, node] : table) {
    const std::string flag = "--" + std::string(key_node.str());
    const std::string key = where + ": " + std::string(key_node.str());
    if (const auto on = node.as_boolean()) {
      if (on->get()) flags.push_back(flag);
    } else if (const toml::array* list = node.as_array()) {
      for (const toml::node& item : *list) flags.insert(flags.end(), {flag, text_of(item, key)});
    } else {
      flags.insert(flags.end(), {flag, text_of(node, key)});
    }
  }
  return flags;
}

// Returns a string of the table [loop], or `fallback` if the key is missing.
std::string string_in(const toml::table& loop, const char* key, const std::string& where, const std::string& fallback) {
  const toml::node* node = loop.get(key);
  if (!node) return fallback;
  if (!node->is_string()) throw Error(ErrorKind::kConfig, where + ": [loop] " + key + ": expected a string");
  return text_of(*node, where + ": [loop] " + key);
}

std::string required(const toml::table& loop, const char* key, const std::string& where) {
  const std::string value = string_in(loop, key, where, "");
  if (value.empty()) throw Error(ErrorKind::kConfig, where + ": [loop] " + key + ": missing, expected a string");
  return value;
}

const LoopStage& stage_named(const std::string& name, const std::string& where) {
  std::string known = "loop";
  for (const LoopStage& stage : loop_stages()) {
    if (stage.name == name) return stage;
    known += " " + stage.name;
  }
  throw Error(ErrorKind::kConfig, where + ": unknown table [" + name + "] (known: " + known + ")");
}

// Throws Error(kConfig) for a key that is no flag of the stage's command; the command would fail only hours later.
void check_keys(const toml::table& table, const LoopStage& stage, const Command& commands, const std::string& where) {
  std::vector<std::string> known;
  if (const Command* command = find_command(commands, stage.command))
    for (const Argument& argument : command->arguments)
      for (const std::string& name : argument.names)
        if (name.starts_with("--")) known.push_back(name.substr(2));
  const auto& given = stage.not_its_own;
  for (const auto& [key_node, node] : table) {
    const std::string key(key_node.str());
    if (std::find(given.begin(), given.end(), key) != given.end())
      throw Error(ErrorKind::kConfig,
                  where + ": '" + key + "' is not set here: the loop runs specdec " + stage.command + " with its own");
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    const std::string meant = nearest(key, known);
    throw Error(ErrorKind::kConfig, where + ": unknown key '" + key + "'" +
                                        (meant.empty() ? "" : " (did you mean '" + meant + "'?)") +
                                        ": keys are the flags of specdec " + stage.command);
  }
}

// Checks names that a stage would reject only after the stages before it have run. Throws Error(kConfig).
void check_names(const LoopSettings& s, const std::string& where) {
  const auto as_setting = [&](const std::string& key, const auto& check) {
    try {
      check();
    } catch (const Error& e) {
      throw Error(ErrorKind::kConfig, where + ": [loop] " + key + ": " + e.what());
    }
  };
  as_setting("channel", [&] { require_channel_name(s.channel); });
  as_setting("draft", [&] { distill::parse_draft_spec(s.draft); });
}

std::vector<std::string> expand(const fs::path& base, const std::string& pattern) {
  const std::string full = fs::path(pattern).is_absolute() ? pattern : (base / pattern).string();
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(full.c_str(), GLOB_ERR, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (paths.empty())
    throw Error(ErrorKind::kData, full +
                                      ": no such log: specdec serve --record DIR writes some (write logs = "
                                      "[\"dir/*.jsonl\"] relative to the loop file)");
  return paths;
}

// Resolves the paths in "model:DIR" and "config:FILE" relative to LOOP.toml, like every path in that file.
// "model:org/name" is a hub name unless such a path exists.
std::string draft_beside(const fs::path& base, const std::string& draft) {
  const size_t colon = draft.find(':');
  const std::string kind = draft.substr(0, colon);
  if ((kind != "model" && kind != "config") || colon + 1 >= draft.size()) return draft;
  const fs::path named = draft.substr(colon + 1),
                 beside = named.is_absolute() ? named : (base / named).lexically_normal();
  const bool is_path = kind == "config" || named.is_absolute() || *named.begin() == "." || *named.begin() == "..";
  return is_path || fs::exists(beside) ? kind + ":" + beside.string() : draft;
}

}  // namespace

const std::vector<LoopStage>& loop_stages() {
  static const std::vector<LoopStage> kStages = {
      {"data", "data ingest", {"target", "out"}},
      {"regenerate", "data regenerate", {"target-files", "out", "resume"}},
      {"distill",
       "distill",
       {"target", "data", "draft", "out", "resume", "forecast", "forecast-samples", "compare", "costs",
        "print-launch"}},
      {"validate", "validate", {"target", "draft", "data", "out"}},
      {"package", "package", {"target", "draft", "report", "store", "channel"}}};
  return kStages;
}

LoopSettings read_loop_settings(const fs::path& file, const Command* commands) {
  const std::string where = file.string();
  const toml::table root = read_toml(file);
  const toml::table* loop = root["loop"].as_table();
  if (!loop) throw Error(ErrorKind::kConfig, where + ": no [loop] table");
  for (const auto& [key, node] : *loop) {
    static const std::vector<std::string> known = {"target", "logs",       "work",     "store", "channel",
                                                   "draft",  "regenerate", "cooldown", "keep",  "launcher"};
    if (std::find(known.begin(), known.end(), std::string(key.str())) == known.end())
      throw Error(ErrorKind::kConfig, where + ": [loop] unknown key '" + std::string(key.str()) +
                                          "' (known: target logs work store channel draft regenerate cooldown keep "
                                          "launcher)");
  }
  LoopSettings s;
  s.file = fs::absolute(file);
  const fs::path base = s.file.parent_path();
  const auto path = [&](const std::string& text) {
    return fs::path(text).is_absolute() ? fs::path(text) : base / text;
  };
  s.target = required(*loop, "target", where);
  if (fs::exists(path(s.target))) s.target = path(s.target).string();
  s.work = path(required(*loop, "work", where));
  s.store = path(required(*loop, "store", where));
  s.channel = string_in(*loop, "channel", where, s.channel);
  s.draft = draft_beside(base, string_in(*loop, "draft", where, s.draft));
  check_names(s, where);
  if (const toml::node* v = loop->get("regenerate")) {
    s.regenerate = v->value_or(std::string());
    if (s.regenerate != "auto" && s.regenerate != "always" && s.regenerate != "never")
      throw Error(ErrorKind::kConfig, where + ": [loop] regenerate: expected \"auto\", \"always\" or \"never\"");
  }
  if (const toml::node* v = loop->get("cooldown"))
    s.cooldown_s =
        parse_duration(v->value_or(std::string()), where + ": [loop] cooldown", ErrorKind::kConfig, {.zero = true});
  if (const toml::node* v = loop->get("keep")) {
    s.keep = v->is_integer() ? *v->value<int64_t>() : 0;
    if (s.keep < 1 || s.keep > 1000)
      throw Error(ErrorKind::kConfig, where + ": [loop] keep: expected a number of runs from 1 to 1000");
  }
  if (const toml::node* v = loop->get("launcher")) {
    const std::string launcher = where + ": [loop] launcher";
    const toml::array* words = v->as_array();
    if (!words || words->empty())
      throw Error(ErrorKind::kConfig, launcher + ": expected a list of words, such as [\"torchrun\", \"--no-python\"]");
    for (const toml::node& word : *words) s.launcher.push_back(text_of(word, launcher));
  }
  const toml::array* logs = (*loop)["logs"].as_array();
  if ((*loop)["logs"].is_string())
    throw Error(ErrorKind::kConfig, where + ": [loop] logs: expected a list, found a string: write logs = [" +
                                        Json(text_of(*loop->get("logs"), where + ": [loop] logs")).dump() + "]");
  if (!logs || logs->empty())
    throw Error(ErrorKind::kConfig, where + ": [loop] logs: missing, expected a list of files or globs");
  for (const toml::node& item : *logs) {
    const auto found = expand(base, text_of(item, where + ": [loop] logs"));
    s.logs.insert(s.logs.end(), found.begin(), found.end());
  }
  for (const auto& [key_node, node] : root) {
    const std::string key(key_node.str());
    if (key == "loop") continue;
    const LoopStage& stage = stage_named(key, where);
    if (!node.is_table()) throw Error(ErrorKind::kConfig, where + ": " + key + ": expected a table");
    if (commands) check_keys(*node.as_table(), stage, *commands, where + ": [" + key + "]");
    s.stage_flags[key] = flags_of(*node.as_table(), where + ": [" + key + "]");
  }
  return s;
}

}  // namespace specdec::cli
