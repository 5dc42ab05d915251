// Finds models by hub name ("org/name") in the local Hugging Face cache, which huggingface_hub lays out like this:
//   CACHE/models--ORG--NAME/{blobs/<etag>, refs/<revision> = commit, snapshots/<commit>/<file> → ../../blobs/<etag>}
// Only reads the cache; net/hub fills it.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace specdec {

struct HubName {
  std::string organisation, name;
  std::string revision = "main";  // branch, tag, refs/pr/N, commit or its first digits

  std::string repository() const { return organisation + "/" + name; }
  std::string text() const { return repository() + (revision == "main" ? "" : "@" + revision); }
};
// Parses "org/name[@revision]", optionally after "hf://". Returns nothing for any other text. A parsed name cannot lead
// out of the cache directory.
std::optional<HubName> parse_hub_name(std::string text);

// In the environment variables below, a leading "~/" stands for HOME. These functions throw Error(kConfig) if HOME is
// needed and not set.
std::filesystem::path hub_home();   // HF_HOME, else XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface
std::filesystem::path hub_cache();  // HF_HUB_CACHE (old name HUGGINGFACE_HUB_CACHE), else hub_home()/hub
std::filesystem::path hub_repository(const HubName& hub);

struct HubSnapshot {
  std::filesystem::path directory;
  std::string commit;
};
// Returns the cached snapshot of hub.revision if it has a config.json. The revision is first taken as a ref's name,
// then as a commit, then as the first digits (at least 7) of a commit if only one commit has them. Throws Error(kModel)
// for a ref that holds no commit.
std::optional<HubSnapshot> find_snapshot(const HubName& hub);
// Works like find_snapshot, but throws Error(kModel) if there is no snapshot; the message says how to download it.
HubSnapshot cached_snapshot(const HubName& hub);

// Returns true for names of directories that tell nothing about a model, such as "target", "model" or "checkpoint-500".
bool is_placeholder_name(const std::string& name);
// Returns the model's names, the best first. The main name is the repository's name without "org/" for a snapshot in
// the hub's cache, else the directory's name. If the directory's name is a placeholder, the last part of
// `_name_or_path` in the config.json of `files` comes first, unless that is a placeholder, too (transformers writes
// there the name or path that the model was loaded from). The parent directory's name is not used: it is often a
// scratch directory, so copies of one model would get different names.
std::vector<std::string> model_names(const std::filesystem::path& directory, const std::filesystem::path& files);
std::string model_name(const std::filesystem::path& directory);  // the best name of the model in `directory`

bool is_commit(const std::string& text);  // 40 lower-case hexadecimal digits

}  // namespace specdec
