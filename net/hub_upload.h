// A repository of a hub that trees of files are published to: large files first, by git LFS, then one commit over the
// branch's last one. Interface: what huggingface_hub 2.4 sends (its _commit_api.py, lfs.py, hf_api.py), without Xet.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "net/hub_blob.h"

namespace specdec::net {

struct HubRefs {
  std::map<std::string, std::string> branches, tags;  // name → commit
};
struct HubFile {
  uint64_t size = 0;
  std::string digest;  // SHA-256 where it lies in LFS, else git's blob id
};
using HubTree = std::map<std::string, HubFile>;

// What one commit changes.
struct HubChange {
  std::map<std::string, std::string> files;  // path → bytes
  HubTree large;                             // in LFS already
  std::vector<std::string> removed;
};

// What a hub asks for before it has a large file. The addresses are signed: never in a message.
struct HubUpload {
  std::string url, verify;         // verify: "" = not asked for
  std::vector<std::string> parts;  // of part_bytes each; none = the whole to `url`
  uint64_t part_bytes = 0;
};

// Every status that is no answer is an Error: kUsage for a token that is missing, refused or would travel in the clear,
// kData for a malformed or hostile answer and for what is not there, kNetwork otherwise. `hub` and `options` live
// longer than this.
class HubRepository : public HubSource {
 public:
  enum class Access { kRead, kWrite };
  HubRepository(const HubName& hub, const HubOptions& options, Access access);

  std::string name() const { return "hf://" + hub_.repository(); }
  // Nothing: there is no such repository, or none that the token may see.
  std::optional<bool> is_private();
  HubRefs refs();
  HubTree tree(const std::string& commit);
  std::string text(const std::string& commit, const std::string& path, size_t max_bytes);  // "" if it is not there
  // The bytes from `begin` on, in order; a server that starts over is read again up to where it was.
  void read_from(const std::string& commit, const std::string& path, uint64_t begin,
                 const std::function<void(std::string_view)>& take);

  void create(bool as_private);  // no error where it is there
  // Of these (path → size and first bytes) those that the hub wants in LFS.
  struct Sample {
    uint64_t size = 0;
    std::string begin;  // 512 bytes
  };
  std::set<std::string> large_files(const std::string& branch, const std::map<std::string, Sample>& files);
  // Nothing: the hub has these bytes.
  std::optional<HubUpload> ask_upload(const std::string& branch, const std::string& sha256, uint64_t size);
  void upload(const HubUpload& to, const std::string& sha256, const std::filesystem::path& file,
              const std::function<void(uint64_t bytes)>& progress);
  // The new commit; nothing where `parent` is not, or no longer, the branch's last one, be it that this commit came
  // through and its reply did not.
  std::optional<std::string> commit(const std::string& branch, const std::string& parent, const std::string& summary,
                                    const std::string& description, const HubChange& change);
  bool create_branch(const std::string& branch, const std::string& commit);  // false: there is one of that name
  bool create_tag(const std::string& tag, const std::string& commit);        // likewise
  void remove_branch(const std::string& branch);                             // no error where it is gone
  void remove_tag(const std::string& tag);

 private:
  std::string api(const std::string& rest) const { return "/api/models/" + hub_.repository() + rest; }
  Json get_json(const std::string& path);
  // JSON to the hub itself; a reply of `tolerated` is no error.
  HttpReply write(const std::string& method, const std::string& path, const std::string& body, const char* type,
                  std::initializer_list<long> tolerated, double timeout_s = 60);
  // `bytes` of the file from `begin` on, to wherever the hub said; the reply's headers.
  HttpReply put(const std::string& url, const InputFile& file, uint64_t begin, uint64_t bytes,
                const std::function<void(uint64_t)>& progress);
  HttpReply post_to(const std::string& url, const std::string& body, bool with_token);
  std::string address(const Json& action, const std::string& where) const;
  [[noreturn]] void refuse_package(const std::string& where, const HttpReply& reply) const;
};

}  // namespace specdec::net
