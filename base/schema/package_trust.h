// Decides which packages are trusted. A store with a trusted.pub (public keys of minisign) accepts and serves only
// packages and channels that these keys have signed: packages by manifest.json.minisig, channels in the channel's own
// file. The decision depends on a package's real path and on the stores through which it was reached, not on how its
// path was spelled.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace specdec {

// A path with all links resolved, and the stores whose packages/ directory the path led through (their paths are
// without links, too).
struct Place {
  std::filesystem::path real;
  std::vector<std::filesystem::path> stores;
};
// Throws Error(kData) if links form a circle, Error(kIo) if one cannot be read.
Place follow_links(const std::filesystem::path& path);

// The content of STORE/refs/NAME. The first line is a package's digest. If the store demands signatures, the second
// line is the signed statement {"channel", "digest", "number", "schema"}, where the number counts the channel's moves,
// and the next four lines are the signature. All of this is one file, so that one rename replaces it.
struct ChannelRecord {
  std::string digest;  // "" = there is no such channel
  int64_t number = 0;  // 0 = not signed; each move of a signed channel adds one, even a rollback
  std::string statement, signature;
};
// Parses the file of a channel. Throws Error(kData) naming `where` for any other content, or if the digest or the
// channel does not match the statement.
ChannelRecord parse_channel(const std::string& text, const std::string& channel, const std::string& where);
std::string to_text(const ChannelRecord& record);
std::string channel_statement(const std::string& channel, const std::string& digest, int64_t number);
ChannelRecord read_channel_record(const std::filesystem::path& store, const std::string& channel);

// Returns the file with a store's public keys, or an empty path if the store demands no signature.
std::filesystem::path trusted_keys(const std::filesystem::path& store);
// Checks a channel of a store that demands signatures: one of the store's keys must have signed the channel, and the
// channel's number must be at least the highest number that this user has seen on this machine. Otherwise throws
// Error(kData) saying how to fix it. The highest number is kept in the directory channel_memory(); a warning is logged
// if it cannot be written.
// * A store that demanded signatures when it was last seen, and does not any more, is refused.
// * If a store was never seen at its path, its number is compared with the highest number that the same key signed in
//   another place. If that place is gone, the store was moved, so a lower number is refused. If that place still
//   exists, a lower number only causes a warning.
void require_trusted_channel(const std::filesystem::path& store, const std::string& channel,
                             const ChannelRecord& record);
// Returns the channel's highest number that this user has seen on this machine, 0 = none. A promotion uses the next
// number.
int64_t seen_number(const std::filesystem::path& store, const std::string& channel);
// Returns $XDG_STATE_HOME/specdec/channels, else $HOME/.local/state/specdec/channels, else an empty path.
std::filesystem::path channel_memory();

// The files of a package whose digests were checked, with their identities at that time. If the files are read later
// and are then still unchanged, the bytes that were read are the bytes that were checked.
class VerifiedFiles {
 public:
  explicit VerifiedFiles(std::filesystem::path root) : root_(std::move(root)) {}
  // Call begin() before and end() after the reading of a file whose digest is checked. end() throws Error(kData) if the
  // file changed in between.
  void begin(const std::string& path);
  void end();
  // Throws Error(kData) naming the first file that was replaced or written to after its check.
  void require_unchanged() const;

 private:
  struct Identity {
    std::string path;
    uint64_t device = 0, node = 0, size = 0;
    int64_t written = 0, changed = 0;  // mtime and ctime, in nanoseconds
    bool operator==(const Identity&) const = default;
  };
  Identity identity_of(const std::string& path) const;
  std::filesystem::path root_;
  std::vector<Identity> files_;
};

}  // namespace specdec
