#include "base/schema/package_trust.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <optional>
#include <thread>

#include "base/fields.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/minisign.h"
#include "base/schema/package_manifest.h"
#include "base/sha256.h"

namespace specdec {

namespace {

constexpr ErrorKind kChannel = ErrorKind::kData;
constexpr int kMaxLinks = 64;
constexpr int64_t kMaxNumber = int64_t{1} << 53;  // JSON numbers are exact up to here in every reader
const char kSeenSchema[] = "specdec.channel_seen/1";

struct Seen {
  int64_t number = 0;
  std::string digest;
  fs::path store;  // where the channel was seen
};

// Returns the file that holds the highest number seen of a channel. `owner` is the path of the channel's store, or the
// result of owner_of() for the key that signed the channel; one key may sign for several stores.
fs::path memory_of(const std::string& owner, const std::string& channel) {
  const fs::path directory = channel_memory();
  return directory.empty() ? fs::path() : directory / (sha256_hex(owner + '\n' + channel).substr(0, 32) + ".json");
}
std::string owner_of(const std::string& signer) { return "key " + signer; }

// Returns the store's real path, so that the numbers seen are shared by all paths that lead to the store.
fs::path real_store(const fs::path& store) {
  std::error_code ec;
  const fs::path real = fs::canonical(store, ec);
  return ec ? fs::absolute(store).lexically_normal() : real;
}

std::optional<Seen> seen_of(const fs::path& file) {
  if (file.empty() || !fs::exists(file)) return std::nullopt;
  const Json seen = read_json(file, kChannel);
  require_schema(seen, "channel_seen", 1, file.string());
  return Seen{json_int(seen, "number", {1, kMaxNumber}, file.string(), kChannel),
              json_digest(seen, "digest", false, file.string(), kChannel),
              json_string(seen, "store", "", file.string(), kChannel)};
}

// Waits up to 2 s for the lock, which other processes hold only while they read or write two small files.
std::optional<FileLock> lock_memory(const fs::path& directory) {
  for (int tries = 0; tries < 200; ++tries) {
    try {
      return std::optional<FileLock>(std::in_place, directory / ".lock");
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kNetwork) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  throw Error(ErrorKind::kNetwork, (directory / ".lock").string() + ": held by another process: try again");
}

void remember(const fs::path& store, const std::string& channel, const ChannelRecord& record,
              const std::string& signer) {
  try {
    const fs::path directory = channel_memory();
    if (directory.empty()) throw Error(ErrorKind::kIo, "neither XDG_STATE_HOME nor HOME is set");
    make_directories(directory);
    const std::optional<FileLock> lock = lock_memory(directory);
    for (const fs::path& file : {memory_of(store.string(), channel), memory_of(owner_of(signer), channel)}) {
      const std::optional<Seen> seen = seen_of(file);
      if (seen && seen->number >= record.number) continue;
      write_file_atomic(file, canonical_json({{"schema", kSeenSchema},
                                              {"store", store.string()},
                                              {"channel", channel},
                                              {"number", record.number},
                                              {"digest", record.digest}}) +
                                  "\n");
    }
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kIo) throw;
    log(LogLevel::kWarn,
        std::string("the channel's number cannot be remembered, so an older one would not be noticed: ") + e.what() +
            ": let XDG_STATE_HOME name a directory that stays and can be written");
  }
}

// Returns the channel's path, STORE/refs/NAME, for messages.
std::string said(const fs::path& store, const std::string& channel) { return (store / "refs" / channel).string(); }
std::string mend(const fs::path& store, const std::string& channel, const std::string& digest) {
  return "specdec package promote sha256-" + digest + " --store " + store.string() + " --channel " + channel +
         " --key FILE";
}

bool is_older(const ChannelRecord& record, const Seen& seen) {
  return record.number < seen.number || (record.number == seen.number && record.digest != seen.digest);
}

[[noreturn]] void refuse_older(const fs::path& store, const std::string& channel, const ChannelRecord& record,
                               const Seen& seen, const fs::path& memory) {
  throw Error(kChannel,
              said(store, channel) + ": an older state of the channel: it is number " + std::to_string(record.number) +
                  " (sha256-" + record.digest.substr(0, 12) + "), and number " + std::to_string(seen.number) +
                  " (sha256-" + seen.digest.substr(0, 12) + ") has been seen " +
                  (seen.store == real_store(store) ? "here" : "in " + seen.store.string()) +
                  ". To go back to an older package use specdec package rollback --key; after restoring a "
                  "backup: " +
                  mend(store, channel, record.digest) + "; if that was meant to be, remove " + memory.string());
}

// Checks a store that was never seen at this path against the highest number that its key has signed for this channel
// in another place. If that place is gone, the store was moved here, so a lower number is refused. If that place still
// exists, this store may be a copy that lags behind, so a lower number only causes a warning.
void check_other_places(const fs::path& store, const std::string& channel, const ChannelRecord& record,
                        const std::string& signer) {
  const fs::path memory = memory_of(owner_of(signer), channel);
  const std::optional<Seen> seen = seen_of(memory);
  if (!seen || !is_older(record, *seen)) return;
  if (!fs::exists(seen->store / "refs")) refuse_older(store, channel, record, *seen, memory);
  log(LogLevel::kWarn, said(store, channel) + ": is number " + std::to_string(record.number) +
                           ", and the same key has signed number " + std::to_string(seen->number) +
                           " of a channel of this name in " + seen->store.string() +
                           ": if this is a copy of that store, it lags behind");
}

}  // namespace

Place follow_links(const fs::path& given) {
  Place place{"/", {}};
  std::deque<fs::path> rest;
  const fs::path whole = given.is_absolute() ? given : fs::current_path() / given;
  for (const fs::path& part : whole.relative_path()) rest.push_back(part);
  for (int links = 0; !rest.empty();) {
    const fs::path part = rest.front();
    rest.pop_front();
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      place.real = place.real.parent_path();
      continue;
    }
    if (part == "packages" && std::find(place.stores.begin(), place.stores.end(), place.real) == place.stores.end())
      place.stores.push_back(place.real);
    std::error_code ec;
    const fs::path next = place.real / part;
    if (!fs::is_symlink(fs::symlink_status(next, ec))) {
      place.real = next;
      continue;
    }
    if (++links > kMaxLinks) throw Error(kChannel, given.string() + ": its links go round in a circle");
    const fs::path target = fs::read_symlink(next, ec);
    if (ec) throw Error(ErrorKind::kIo, next.string() + ": cannot read the link: " + ec.message());
    if (target.is_absolute()) place.real = "/";
    const fs::path parts = target.relative_path();
    rest.insert(rest.begin(), parts.begin(), parts.end());
  }
  return place;
}

struct ChannelStatement {
  std::string channel, digest;
  int64_t number = 0;
};
void visit_fields(Fields& f, ChannelStatement& said) {
  f.schema("channel", 1);
  f("number", said.number, {1, kMaxNumber});
  f("channel", said.channel);
  f.digest("digest", said.digest);
}

std::string channel_statement(const std::string& channel, const std::string& digest, int64_t number) {
  return canonical_json(json_of(ChannelStatement{channel, digest, number}));
}

ChannelRecord parse_channel(const std::string& text, const std::string& channel, const std::string& where) {
  ChannelRecord record;
  const size_t first = text.find('\n');
  record.digest = text.substr(0, first);
  if (!is_sha256_hex(record.digest)) throw Error(kChannel, where + ": damaged channel: expected a package digest");
  if (first == std::string::npos || text.find_first_not_of('\n', first) == std::string::npos) return record;
  const size_t second = text.find('\n', first + 1);
  record.statement = text.substr(first + 1, second == std::string::npos ? second : second - first - 1);
  if (second != std::string::npos) record.signature = text.substr(second + 1);
  const auto said = read_fields<ChannelStatement>(parse_json(record.statement, where), where, kChannel);
  record.number = said.number;
  if (said.channel != channel || said.digest != record.digest)
    throw Error(kChannel, where + ": damaged channel: its second line speaks of another channel or another package");
  return record;
}

std::string to_text(const ChannelRecord& record) {
  return record.digest + "\n" + (record.number > 0 ? record.statement + "\n" + record.signature : "");
}

ChannelRecord read_channel_record(const fs::path& store, const std::string& channel) {
  require_channel_name(channel);
  const fs::path file = store / "refs" / channel;
  if (!fs::exists(file)) return {};
  return parse_channel(read_file(file, 4096, kChannel), channel, file.string());
}

fs::path trusted_keys(const fs::path& store) {
  const fs::path keys = store / "trusted.pub";
  return fs::exists(fs::symlink_status(keys)) ? keys : fs::path();
}

int64_t seen_number(const fs::path& store, const std::string& channel) {
  if (const std::optional<Seen> seen = seen_of(memory_of(real_store(store).string(), channel))) return seen->number;
  // For a store that was moved here, numbering continues after the highest number that its key signed at the old place.
  int64_t number = 0;
  if (const fs::path keys = trusted_keys(store); !keys.empty())
    for (const MinisignPublicKey& key : read_minisign_keys(keys))
      if (const auto seen = seen_of(memory_of(owner_of(key.name()), channel));
          seen && !fs::exists(seen->store / "refs"))
        number = std::max(number, seen->number);
  return number;
}

void require_trusted_channel(const fs::path& store, const std::string& channel, const ChannelRecord& record) {
  const fs::path real = real_store(store), keys = trusted_keys(store), memory = memory_of(real.string(), channel);
  const std::optional<Seen> seen = seen_of(memory);
  if (keys.empty()) {
    if (!seen) return;
    throw Error(kChannel, said(store, channel) +
                              ": this store demanded signatures when it was last seen here (number " +
                              std::to_string(seen->number) + "), and its trusted.pub is gone: put it back; if that " +
                              "was meant to be, remove " + memory.string());
  }
  if (record.number == 0)
    throw Error(kChannel, said(store, channel) + ": not signed, and " + keys.string() +
                              " demands it: " + mend(store, channel, record.digest));
  const std::string signer =
      verify_minisign(record.statement, record.signature, read_minisign_keys(keys), said(store, channel)).signer;
  if (seen && is_older(record, *seen)) refuse_older(store, channel, record, *seen, memory);
  if (!seen) check_other_places(store, channel, record, signer);
  remember(real, channel, record, signer);
}

fs::path channel_memory() {
  const char* const state = std::getenv("XDG_STATE_HOME");
  const char* const home = std::getenv("HOME");
  if (state && *state == '/') return fs::path(state) / "specdec" / "channels";
  return home && *home == '/' ? fs::path(home) / ".local" / "state" / "specdec" / "channels" : fs::path();
}

// ---- VerifiedFiles ----

VerifiedFiles::Identity VerifiedFiles::identity_of(const std::string& path) const {
  struct stat s{};
  if (::lstat((root_ / path).c_str(), &s) != 0) return {path};
  const auto ns = [](const timespec& t) { return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec; };
  return {path, s.st_dev, s.st_ino, static_cast<uint64_t>(s.st_size), ns(s.st_mtim), ns(s.st_ctim)};
}

void VerifiedFiles::begin(const std::string& path) { files_.push_back(identity_of(path)); }

void VerifiedFiles::end() {
  if (!(identity_of(files_.back().path) == files_.back()))
    throw Error(kChannel, (root_ / files_.back().path).string() + ": was written to while it was checked");
}

void VerifiedFiles::require_unchanged() const {
  for (const Identity& file : files_)
    if (!(identity_of(file.path) == file))
      throw Error(kChannel, (root_ / file.path).string() +
                                ": was changed after it had been checked: nothing of this package is used");
}

}  // namespace specdec
