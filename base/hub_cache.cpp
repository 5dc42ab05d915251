#include "base/hub_cache.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "base/environment.h"
#include "base/file.h"
#include "base/json.h"

namespace specdec {

namespace {

fs::path home() {
  const std::string home = environment({"HOME"});
  if (home.empty())
    throw Error(ErrorKind::kConfig, "HOME is not set: set HF_HOME to the folder of the Hugging Face cache");
  return home;
}

// Expands "~/" as huggingface_hub does, because no shell expands it in environment files and manifests.
fs::path expanded(const std::string& path) { return path.starts_with("~/") ? home() / path.substr(2) : fs::path(path); }

bool is_name(const std::string& text, bool slashes) {
  if (text.empty() || text.size() > 96 || text.front() == '.' || text.front() == '/' ||
      text.find("..") != std::string::npos)
    return false;
  for (const char c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.' && !(slashes && c == '/'))
      return false;
  return true;
}

bool is_hex(const std::string& text) { return text.find_first_not_of("0123456789abcdef") == std::string::npos; }

std::optional<HubSnapshot> snapshot_of(const fs::path& snapshots, const std::string& commit) {
  std::error_code ec;
  if (!fs::is_regular_file(snapshots / commit / "config.json", ec)) return std::nullopt;
  return HubSnapshot{snapshots / commit, commit};
}

}  // namespace

bool is_commit(const std::string& text) { return text.size() == 40 && is_hex(text); }

std::optional<HubName> parse_hub_name(std::string text) {
  if (text.rfind("hf://", 0) == 0) text = text.substr(5);
  HubName hub;
  if (const size_t at = text.find('@'); at != std::string::npos) {
    hub.revision = text.substr(at + 1);
    text.resize(at);
  }
  const size_t slash = text.find('/');
  if (slash == std::string::npos) return std::nullopt;
  hub.organisation = text.substr(0, slash);
  hub.name = text.substr(slash + 1);
  if (!is_name(hub.organisation, false) || !is_name(hub.name, false) || !is_name(hub.revision, true))
    return std::nullopt;
  return hub;
}

fs::path hub_home() {
  if (const std::string given = environment({"HF_HOME"}); !given.empty()) return expanded(given);
  if (const std::string xdg = environment({"XDG_CACHE_HOME"}); !xdg.empty()) return expanded(xdg) / "huggingface";
  return home() / ".cache" / "huggingface";
}

fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string value = environment({name}); !value.empty()) return expanded(value);
  return hub_home() / "hub";
}

fs::path hub_repository(const HubName& hub) { return hub_cache() / ("models--" + hub.organisation + "--" + hub.name); }

std::optional<HubSnapshot> find_snapshot(const HubName& hub) {
  const fs::path repository = hub_repository(hub), snapshots = repository / "snapshots";
  std::error_code ec;
  if (const fs::path ref = repository / "refs" / hub.revision; fs::is_regular_file(ref, ec)) {
    std::string commit = read_file(ref, 4096, ErrorKind::kModel);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
    if (!is_name(commit, false))
      throw Error(ErrorKind::kModel, ref.string() + ": expected a commit, found '" + commit.substr(0, 64) + "'");
    return snapshot_of(snapshots, commit);
  }
  if (const auto exact = snapshot_of(snapshots, hub.revision)) return exact;
  if (hub.revision.size() < 7 || !is_hex(hub.revision)) return std::nullopt;
  std::optional<HubSnapshot> found;
  for (fs::directory_iterator it(snapshots, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string commit = it->path().filename().string();
    if (!commit.starts_with(hub.revision)) continue;
    if (found) return std::nullopt;
    found = snapshot_of(snapshots, commit);
  }
  return found;
}

bool is_placeholder_name(const std::string& name) {
  static const std::set<std::string> kPlaceholders = {"target", "draft",  "model", "models",  "base", "checkpoint",
                                                      "final",  "output", "best",  "weights", "main"};
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (const size_t end = lower.find_last_not_of("0123456789"); end != std::string::npos && lower[end] == '-')
    lower.resize(end);  // "checkpoint-500" becomes "checkpoint"
  return kPlaceholders.contains(lower);
}

namespace {

// Returns the last part of `_name_or_path` in config.json, or "" if it is missing, not a valid name, or a placeholder.
std::string configured_name(const fs::path& files) {
  std::error_code ec;
  if (!fs::is_regular_file(files / "config.json", ec)) return "";
  try {
    const Json config = read_json(files / "config.json", ErrorKind::kModel);
    const Json found = config.is_object() ? config.value("_name_or_path", Json()) : Json();
    if (!found.is_string()) return "";
    const fs::path path = found.get<std::string>();
    const std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
    return is_name(name, false) && !is_placeholder_name(name) ? name : "";
  } catch (const Error&) {  // ignored here, because loading the model reports it
    return "";
  }
}

}  // namespace

std::vector<std::string> model_names(const fs::path& directory, const fs::path& files) {
  fs::path path = fs::absolute(directory).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string repository = path.parent_path().parent_path().filename().string(), own = path.filename().string();
  const size_t name = repository.find("--", sizeof "models--" - 1);
  if (path.parent_path().filename() == "snapshots" && repository.starts_with("models--") && name != std::string::npos)
    return {repository.substr(name + 2)};
  // A directory made from a GGUF file is …/specdec/gguf/<name>-<16 hex digits> (base/gguf/model_files.h).
  if (const fs::path parent = path.parent_path(); own.size() > 17 && own[own.size() - 17] == '-' &&
                                                  parent.filename() == "gguf" &&
                                                  parent.parent_path().filename() == "specdec")
    return {own.substr(0, own.size() - 17), own};
  const std::string configured = is_placeholder_name(own) ? configured_name(files) : "";
  return configured.empty() ? std::vector{own} : std::vector{configured, own};
}

std::string model_name(const fs::path& directory) { return model_names(directory, directory).front(); }

HubSnapshot cached_snapshot(const HubName& hub) {
  if (auto snapshot = find_snapshot(hub)) return *snapshot;
  throw Error(ErrorKind::kModel,
              hub.text() + ": neither a local directory nor in the Hugging Face cache (no snapshot of revision " +
                  hub.revision + " with a config.json in " + hub_repository(hub).string() +
                  "): download it first (specdec fetch " + hub.text() + ") or give a local directory");
}

}  // namespace specdec
