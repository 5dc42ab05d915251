// Whom a package is trusted for. A store with a trusted.pub (public keys of minisign) takes and serves what these keys
// have signed: packages by manifest.json.minisig, channels in the channel's own file. What counts is where a package
// lies and through which stores it was reached, not how it was spelled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace specdec {

// Where a path leads once every link is followed, and the stores (directories, without links) whose packages/ was
// passed on the way.
struct Place {
  std::filesystem::path real;
  std::vector<std::filesystem::path> stores;
};
// Throws Error(kData) where links go round in a circle, Error(kIo) where one cannot be read.
Place follow_links(const std::filesystem::path& path);

// STORE/refs/NAME: a package's digest, and in a store that demands it a second line that says which channel names it
// and how often that has changed ({"channel", "digest", "number", "schema"}), with the four lines of its signature. One
// file, so that one rename replaces all of it.
struct ChannelRecord {
  std::string digest;  // "" = there is no such channel
  int64_t number = 0;  // 0 = not signed; every move of a signed channel is one more, a rollback too
  std::string statement, signature;
};
// Throws Error(kData) naming `where` for anything else, Error(kData) where digest or channel are not those of the
// statement.
ChannelRecord parse_channel(const std::string& text, const std::string& channel, const std::string& where);
std::string to_text(const ChannelRecord& record);
std::string channel_statement(const std::string& channel, const std::string& digest, int64_t number);
ChannelRecord read_channel_record(const std::filesystem::path& store, const std::string& channel);

// The public keys of a store, empty path where it demands no signature.
std::filesystem::path trusted_keys(const std::filesystem::path& store);
// A channel of a store that demands signatures: signed by one of its keys, and not older than what this machine has
// seen of it. Throws Error(kData) saying what mends it. The number is remembered, for this user, in the directory of
// channel_memory(); where nothing can be remembered a warning says so. A store that demanded signatures when it was
// last seen and does so no more is refused as well.
void require_trusted_channel(const std::filesystem::path& store, const std::string& channel,
                             const ChannelRecord& record);
// The highest number seen here, 0 = none. What promotes goes on from it.
int64_t seen_number(const std::filesystem::path& store, const std::string& channel);
// $XDG_STATE_HOME/specdec/channels, else $HOME/.local/state/specdec/channels, else empty.
std::filesystem::path channel_memory();

// The files of a package whose digests were checked, as they were then. Reading them and then finding them unchanged
// means that what was read is what was checked.
class VerifiedFiles {
 public:
  explicit VerifiedFiles(std::filesystem::path root) : root_(std::move(root)) {}
  // Before the file is read to be checked, and after: Error(kData) where it has changed between the two.
  void begin(const std::string& path);
  void end();
  // Throws Error(kData) naming the first that is another file now, or was written to since.
  void require_unchanged() const;

 private:
  struct Identity {
    std::string path;
    uint64_t device = 0, node = 0, size = 0;
    int64_t written = 0, changed = 0;  // ns
    bool operator==(const Identity&) const = default;
  };
  Identity identity_of(const std::string& path) const;
  std::filesystem::path root_;
  std::vector<Identity> files_;
};

}  // namespace specdec
