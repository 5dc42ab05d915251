// One file of a hub: gets its description from the hub and downloads its bytes into the cache.
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

// Throws Error(kModel) if a name from a hub's list of files is malformed or could mean a file outside of the tree,
// which would be an attack.
void require_harmless(const std::string& name, const std::string& where);

// A repository at a hub's endpoint. Every unexpected status becomes an Error (see fetch_model in net/hub.h).
class HubSource {
 public:
  HubSource(const HubName& hub, const HubOptions& options);

  // Sends GET or HEAD for a path below the endpoint. Follows redirects within the endpoint (a renamed repository sends
  // them) and redirects to another host (a mirror sends them to the hub); the other host does not get the token. For
  // HEAD, a redirect whose headers describe the file's bytes is returned and not followed.
  HttpReply ask(const std::string& path, bool head, int max_attempts);
  // Asks for size and digest. Throws Error(kModel) if the hub gives none.
  RemoteFile describe(const std::string& commit, const std::string& name);
  // Passes the file's bytes from offset begin() on to `take(first, bytes)`, where `first` is the offset of `bytes` in
  // the file. `first` is 0 if the server starts over. Returns when the server stops sending, even if it sent only a
  // part.
  void read(const RemoteFile& file, const std::function<uint64_t()>& begin,
            const std::function<void(uint64_t first, std::string_view bytes)>& take);

 protected:
  HttpRequest request(const std::string& url) const;
  // Sends the request of ask(), but does not follow redirects to other hosts, and returns the reply whatever its
  // status.
  HttpReply get(const std::string& path, bool head, int max_attempts);
  [[noreturn]] void refuse(const std::string& url, const HttpReply& reply) const;
  const HubName& hub_;
  const HubOptions& options_;
  Secret bearer_;
  HttpClient http_;
};

// Returns whether the blob exists with the right size. Follows symbolic links, because huggingface_hub may share one
// blob between repositories.
bool has_blob(const std::filesystem::path& repository, const RemoteFile& file);

// Makes blobs/<etag>: downloads to <etag>.<8 digits>.incomplete beside it, checks the digest and renames the file.
// Continues a download that a killed run left. huggingface_hub's lock keeps two processes from downloading the same
// bytes. Correctness does not depend on the lock: temporary names are unique, and equal blobs replace each other.
void fetch_blob(const std::filesystem::path& repository, const RemoteFile& file, HubSource& source,
                const std::function<void(uint64_t bytes)>& progress);

}  // namespace specdec::net
