// Finds models that are named as on a Hugging Face hub in the local cache, whose layout is that of huggingface_hub:
//   CACHE/models--ORG--NAME/{blobs/<etag>, refs/<revision> = commit, snapshots/<commit>/<file> → ../../blobs/<etag>}
// Only reads the cache; net/hub fills it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace specdec {

struct HubName {
  std::string organisation, name;
  std::string revision = "main";  // branch, tag, refs/pr/N, commit or its first digits

  std::string repository() const { return organisation + "/" + name; }
  std::string text() const { return repository() + (revision == "main" ? "" : "@" + revision); }
};
// Parses "org/name[@revision]", optionally after "hf://". Returns nothing for other text; no name leads out of the
// cache.
std::optional<HubName> parse_hub_name(std::string text);

// "~/" stands for HOME. Throws Error(kConfig) if HOME is needed and not set.
std::filesystem::path hub_home();   // HF_HOME, else XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface
std::filesystem::path hub_cache();  // HF_HUB_CACHE (old name HUGGINGFACE_HUB_CACHE), else the home's hub/
std::filesystem::path hub_repository(const HubName& hub);

struct HubSnapshot {
  std::filesystem::path directory;
  std::string commit;
};
// Returns the snapshot of this revision if it has a config.json: that of the ref with this name, else of the commit,
// else of the only commit with these first digits (at least 7). Throws Error(kModel) for a ref that holds no commit.
std::optional<HubSnapshot> find_snapshot(const HubName& hub);
// Does the same, but throws Error(kModel) if there is no snapshot, saying what was looked for and how to get it.
HubSnapshot cached_snapshot(const HubName& hub);

// Returns the name of the model in this directory: for a snapshot that of its repository, else that of the directory.
std::string model_name(const std::filesystem::path& directory);

bool is_commit(const std::string& text);  // 40 lower-case hexadecimal digits

}  // namespace specdec
