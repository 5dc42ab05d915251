#include "base/model_directory.h"

#include <cctype>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/schema/package_manifest.h"

namespace specdec {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// huggingface_hub's rule: HF_HUB_CACHE (old name HUGGINGFACE_HUB_CACHE), else HF_HOME/hub, else the XDG cache.
fs::path hub_cache() {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string value = variable(name); !value.empty()) return value;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  if (const std::string xdg = variable("XDG_CACHE_HOME"); !xdg.empty()) return fs::path(xdg) / "huggingface" / "hub";
  return fs::path(variable("HOME")) / ".cache" / "huggingface" / "hub";
}

bool is_name(const std::string& text, bool slashes) {
  if (text.empty() || text.size() > 96 || text.front() == '.' || text.front() == '/' || text.find("..") != std::string::npos) return false;
  for (const char c : text)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '_' && c != '.' && !(slashes && c == '/')) return false;
  return true;
}

struct HubName {
  std::string organisation, name, revision = "main";
};
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
  if (!is_name(hub.organisation, false) || !is_name(hub.name, false) || !is_name(hub.revision, true)) return std::nullopt;
  return hub;
}

// refs/REVISION holds the commit; a commit may be named itself.
fs::path hub_directory(const HubName& hub, const std::string& argument) {
  const fs::path cache = hub_cache(), repository = cache / ("models--" + hub.organisation + "--" + hub.name);
  const std::string fetch = "download it first (hf download " + hub.organisation + "/" + hub.name +
                            (hub.revision == "main" ? "" : " --revision " + hub.revision) + ") or give a local directory";
  std::error_code ec;
  if (!fs::is_directory(repository, ec))
    throw Error(ErrorKind::kModel, argument + ": neither a local directory nor in the Hugging Face cache " + cache.string() + ": " + fetch);
  std::string commit = hub.revision;
  if (const fs::path ref = repository / "refs" / hub.revision; fs::is_regular_file(ref, ec)) {
    commit = read_file(ref, 4096, ErrorKind::kModel);
    while (!commit.empty() && std::isspace(static_cast<unsigned char>(commit.back()))) commit.pop_back();
    if (!is_name(commit, false)) throw Error(ErrorKind::kModel, ref.string() + ": expected a commit, found '" + commit.substr(0, 64) + "'");
  }
  const fs::path snapshot = repository / "snapshots" / commit;
  if (!fs::is_regular_file(snapshot / "config.json", ec))
    throw Error(ErrorKind::kModel, argument + ": revision " + hub.revision + " is not complete in " + repository.string() +
                                       " (no snapshots/" + commit + "/config.json): " + fetch);
  return snapshot;
}

}  // namespace

ResolvedModel resolve_model(const std::string& argument) {
  if (argument.empty()) throw Error(ErrorKind::kUsage, "MODEL is empty: give a local directory, a package or org/name");
  if (const auto package = locate_package(argument)) {
    fs::path target = package->target;
    std::error_code ec;
    if (!package->manifest.target_reference.empty() && !fs::is_directory(target, ec))
      target = with_context(argument + ": the package names its target", [&] { return resolve_model(package->manifest.target_reference).directory; });
    ResolvedModel model{target, package->draft, package->digest, ""};
    const Fingerprint found = fingerprint_model(target);
    if (const std::string tiers = differing_tiers(package->manifest.target, found); tiers.empty())
      verify_files(package->root, package->manifest, true);
    else
      model.stale_reason = target.string() + " is another model than the one this package was validated with (or damaged): " + tiers + " differ (expected " +
                           package->manifest.target.id.substr(0, 12) + ", found " + found.id.substr(0, 12) + ")";
    return model;
  }
  std::error_code ec;
  const fs::path local(argument);
  if (fs::exists(local, ec)) {
    if (!fs::is_directory(local, ec)) throw Error(ErrorKind::kModel, argument + ": expected a model directory, found a file");
    if (!fs::exists(local / "config.json", ec))
      throw Error(ErrorKind::kModel, argument + ": no config.json: not a Hugging Face model directory, nor a package (no manifest.json)");
    return {local, {}, "", ""};
  }
  if (const auto hub = parse_hub_name(argument)) return {hub_directory(*hub, argument), {}, "", ""};
  throw Error(ErrorKind::kModel, argument + ": no such directory, package or org/name[@revision]");
}

}  // namespace specdec
