// Decides which packages are trusted. A store with a trusted.pub (public keys of minisign) accepts and serves only what
// these keys have signed: packages by manifest.json.minisig, channels in the channel's own file. It matters where a
// package really is and through which stores it was reached, not how its path was spelled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace specdec {

// The path that remains when every link is followed, and the stores (directories, without links) whose packages/ was
// passed on the way.
struct Place {
  std::filesystem::path real;
  std::vector<std::filesystem::path> stores;
};
// Throws Error(kData) if links form a circle, Error(kIo) if one cannot be read.
Place follow_links(const std::filesystem::path& path);

// The content of STORE/refs/NAME: a package's digest. If the store demands signatures, a second line states which
// channel names the package and how often that has changed ({"channel", "digest", "number", "schema"}), and four lines
// of signature follow. It is one file, so that one rename replaces all of it.
struct ChannelRecord {
  std::string digest;  // "" = there is no such channel
  int64_t number = 0;  // 0 = not signed; each move of a signed channel adds one, even a rollback
  std::string statement, signature;
};
// Throws Error(kData) naming `where` for any other content, or if digest or channel do not match the statement.
ChannelRecord parse_channel(const std::string& text, const std::string& channel, const std::string& where);
std::string to_text(const ChannelRecord& record);
std::string channel_statement(const std::string& channel, const std::string& digest, int64_t number);
ChannelRecord read_channel_record(const std::filesystem::path& store, const std::string& channel);

// Returns the file with a store's public keys, or an empty path if the store demands no signature.
std::filesystem::path trusted_keys(const std::filesystem::path& store);
// Requires that a channel of a store that demands signatures is signed by one of its keys, and is not older than what
// this machine has seen of it. Throws Error(kData) saying how to fix it. Remembers the number, for this user, in the
// directory channel_memory(), and warns if it cannot. Also refuses a store that no longer demands signatures but did
// when it was last seen.
void require_trusted_channel(const std::filesystem::path& store, const std::string& channel,
                             const ChannelRecord& record);
// Returns the highest number seen here, 0 = none. A promotion uses the next number.
int64_t seen_number(const std::filesystem::path& store, const std::string& channel);
// Returns $XDG_STATE_HOME/specdec/channels, else $HOME/.local/state/specdec/channels, else an empty path.
std::filesystem::path channel_memory();

// The files of a package whose digests were checked, with their state at that time. Reading the files and then finding
// them unchanged proves that what was read is what was checked.
class VerifiedFiles {
 public:
  explicit VerifiedFiles(std::filesystem::path root) : root_(std::move(root)) {}
  // Call before and after a file is read to be checked. end() throws Error(kData) if the file changed in between.
  void begin(const std::string& path);
  void end();
  // Throws Error(kData) naming the first file that was replaced or written to since.
  void require_unchanged() const;

 private:
  struct Identity {
    std::string path;
    uint64_t device = 0, node = 0, size = 0;
    int64_t written = 0, changed = 0;  // in nanoseconds
    bool operator==(const Identity&) const = default;
  };
  Identity identity_of(const std::string& path) const;
  std::filesystem::path root_;
  std::vector<Identity> files_;
};

}  // namespace specdec
