// One file of a hub: what the hub says of it, and its bytes into the cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "net/hub.h"

namespace specdec::net {

struct RemoteFile {
  std::string name, url;
  std::string etag;  // the blob's name: SHA-256 of the bytes (LFS, Xet), else git's blob id
  uint64_t size = 0;
};

// A name from a hub's list. Anything that could mean a file outside of the tree is an attack, not a name:
// Error(kModel).
void require_harmless(const std::string& name, const std::string& where);

// The repository at its endpoint. Every status that is no answer is an Error here (net/hub.h).
class HubSource {
 public:
  HubSource(const HubName& hub, const HubOptions& options);

  // GET of a path below the endpoint, or HEAD. Redirects within the endpoint are followed (a repository that was
  // renamed).
  HttpReply ask(const std::string& path, bool head, int max_attempts);
  // Size and digest. Throws Error(kModel) where the hub gives none.
  RemoteFile describe(const std::string& commit, const std::string& name);
  // The bytes from `begin` on, to `take(first, bytes)`; first: their place in the file, 0 where the server starts over.
  // Returns when the server is done, with whatever part.
  void read(const RemoteFile& file, const std::function<uint64_t()>& begin,
            const std::function<void(uint64_t first, std::string_view bytes)>& take);

 protected:
  HttpRequest request(const std::string& url) const;
  // As ask(), the reply whatever it is.
  HttpReply get(const std::string& path, bool head, int max_attempts);
  [[noreturn]] void refuse(const std::string& url, const HttpReply& reply) const;
  const HubName& hub_;
  const HubOptions& options_;
  Secret bearer_;
  HttpClient http_;
};

// The blob is there and of the right size. Links are followed: huggingface_hub may share one blob between repositories.
bool has_blob(const std::filesystem::path& repository, const RemoteFile& file);

// Makes blobs/<etag>: as <etag>.<8 digits>.incomplete beside it, checked, then renamed. What a killed run left is
// continued. huggingface_hub's lock saves two processes from loading the same bytes, and nothing depends on it: names
// are unique, and equal blobs replace each other.
void fetch_blob(const std::filesystem::path& repository, const RemoteFile& file, HubSource& source,
                const std::function<void(uint64_t bytes)>& progress);

}  // namespace specdec::net
