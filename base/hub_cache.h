// Models named after a Hugging Face hub, and the local cache as huggingface_hub lays it out:
//   CACHE/models--ORG--NAME/{blobs/<etag>, refs/<revision> = commit, snapshots/<commit>/<file> → ../../blobs/<etag>}
// Read only; net/hub fills it.
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
// "org/name[@revision]", also after "hf://". Nothing for a text that is no such name; none leads out of the cache.
std::optional<HubName> parse_hub_name(std::string text);

// "~/" is HOME. Throws Error(kConfig) where HOME is needed and not set.
std::filesystem::path hub_home();   // HF_HOME, else XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface
std::filesystem::path hub_cache();  // HF_HUB_CACHE (old name HUGGINGFACE_HUB_CACHE), else the home's hub/
std::filesystem::path hub_repository(const HubName& hub);

struct HubSnapshot {
  std::filesystem::path directory;
  std::string commit;
};
// The snapshot that has a config.json and that the revision names: the ref of that name, else the commit, else the one
// commit that begins so (at least 7 digits). Throws Error(kModel) for a ref that holds no commit.
std::optional<HubSnapshot> find_snapshot(const HubName& hub);
// The same; where there is none: Error(kModel) saying what was looked for and how to get it.
HubSnapshot cached_snapshot(const HubName& hub);

// What a model that lies there is called: a snapshot after its repository, anything else after its directory.
std::string model_name(const std::filesystem::path& directory);

bool is_commit(const std::string& text);  // 40 lower-case hexadecimal digits

}  // namespace specdec
