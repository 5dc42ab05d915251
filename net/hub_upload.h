// Publishes trees of files to a repository of a hub: large files first, by git LFS, then one commit on top of the
// branch. Sends what huggingface_hub 2.4 sends (its _commit_api.py, lfs.py, hf_api.py), without Xet.
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
  std::string digest;  // SHA-256 if the file is in LFS, else git's blob id
};
using HubTree = std::map<std::string, HubFile>;

// The changes of one commit.
struct HubChange {
  std::map<std::string, std::string> files;  // path → bytes
  HubTree large;                             // files that are in LFS already
  std::vector<std::string> removed;
};

// The requests that upload one large file. The URLs are signed and must not appear in a message.
struct HubUpload {
  std::string url, verify;         // `verify`: URL to call after the upload; "" = no call is requested
  std::vector<std::string> parts;  // URLs for part_bytes each; empty = the whole file goes to `url`
  uint64_t part_bytes = 0;
};

// A repository of packages. Every unexpected status becomes an Error: kUsage for a token that is missing, refused or
// would be sent unencrypted, and for a renamed repository; kNetwork for 429, 5xx, broken connections and failed
// uploads; else kData. A malformed or hostile answer is kData too. read_from() throws as HubSource::read() does. `hub`
// and `options` must live longer than this object.
class HubRepository : public HubSource {
 public:
  enum class Access { kRead, kWrite };
  HubRepository(const HubName& hub, const HubOptions& options, Access access);

  std::string name() const { return "hf://" + hub_.repository(); }
  // Returns whether the repository is private; nothing if it does not exist or the token may not see it.
  std::optional<bool> is_private();
  HubRefs refs();
  HubTree tree(const std::string& commit);
  // Returns the content of a file, or "" if the file does not exist.
  std::string text(const std::string& commit, const std::string& path, size_t max_bytes);
  // Passes the file's bytes from `begin` on to `take`, in order. If the server starts over, skips the bytes before
  // `begin` and those already passed on.
  void read_from(const std::string& commit, const std::string& path, uint64_t begin,
                 const std::function<void(std::string_view)>& take);

  void create(bool as_private);  // no error if it exists already
  // Describes a file, so that the hub can decide whether it belongs in LFS.
  struct Sample {
    uint64_t size = 0;
    std::string begin;  // the first 512 bytes
  };
  // Returns the paths of the files that the hub wants in LFS.
  std::set<std::string> large_files(const std::string& branch, const std::map<std::string, Sample>& files);
  // Asks how to upload a large file. Returns nothing if the hub has these bytes already.
  std::optional<HubUpload> ask_upload(const std::string& branch, const std::string& sha256, uint64_t size);
  void upload(const HubUpload& to, const std::string& sha256, const std::filesystem::path& file,
              const std::function<void(uint64_t bytes)>& progress);
  // Makes a commit and returns its id. Returns nothing if `parent` is not the branch's last commit; this is also the
  // case if an earlier attempt of the same commit succeeded but its reply was lost.
  std::optional<std::string> commit(const std::string& branch, const std::string& parent, const std::string& summary,
                                    const std::string& description, const HubChange& change);
  bool create_branch(const std::string& branch, const std::string& commit);  // returns false if the name exists
  bool create_tag(const std::string& tag, const std::string& commit);        // returns false if the name exists
  void remove_branch(const std::string& branch);                             // no error if it does not exist
  void remove_tag(const std::string& tag);

 private:
  std::string api(const std::string& rest) const { return "/api/models/" + hub_.repository() + rest; }
  Json get_json(const std::string& path);
  struct Body {
    std::string bytes;
    const char* type;  // the Content-Type
  };
  // Sends a body to the hub itself. A status in `tolerated` is not an error.
  HttpReply write(const std::string& method, const std::string& path, const Body& body,
                  std::initializer_list<long> tolerated, double timeout_s = 60);
  // Uploads `bytes` bytes of the file, from `begin` on, to the URL that the hub gave. Returns the reply, whose headers
  // the caller needs.
  HttpReply put(const std::string& url, const InputFile& file, uint64_t begin, uint64_t bytes,
                const std::function<void(uint64_t)>& progress);
  HttpReply post_to(const std::string& url, const std::string& body, bool with_token);
  std::string address(const Json& action, const std::string& where) const;
  [[noreturn]] void refuse_package(const std::string& where, const HttpReply& reply) const;
};

}  // namespace specdec::net
