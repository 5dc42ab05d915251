#include "data/id_key.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/file.h"
#include "base/sha256.h"

namespace specdec::data {

namespace {

constexpr size_t kSecretBytes = 32, kDigits = 2 * kSecretBytes;

[[noreturn]] void io_error(const fs::path& path, const char* action) {
  throw Error(ErrorKind::kIo, path.string() + ": " + action + ": " + std::strerror(errno));
}

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

std::string random_digits(const fs::path& file) {
  std::array<char, kSecretBytes> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    io_error(file, "no random bytes for the salt");
  return to_hex({bytes.data(), bytes.size()});
}

// Returns the secret in the file, or nothing if the file does not exist. All checks are made on the opened file, not on
// its path.
std::optional<std::string> read_secret(const fs::path& file) {
  const Descriptor opened{::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)};
  if (opened.fd < 0 && errno == ENOENT) return std::nullopt;
  if (opened.fd < 0 && errno == ELOOP)
    throw Error(ErrorKind::kConfig, file.string() + ": is a link: the salt must be a file of its own");
  if (opened.fd < 0) io_error(file, "cannot open the salt");
  struct stat info{};
  if (::fstat(opened.fd, &info) != 0) io_error(file, "cannot look at the salt");
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorKind::kConfig, file.string() + ": is no regular file: the salt must be one");
  if (info.st_mode & 077) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    throw Error(ErrorKind::kConfig, file.string() + ": others may read the salt (mode " + mode +
                                        "): run chmod 600 on it, or draw a new one by removing it");
  }
  // The optional itself is returned: GCC 12 warns, wrongly, where a string is moved into it.
  std::optional<std::string> secret(std::in_place, kDigits + 2, '\0');
  std::string& text = *secret;
  text.resize(read_stream(opened.fd, text, file.string()));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() != kDigits || text.find_first_not_of("0123456789abcdef") != text.npos)
    throw Error(ErrorKind::kConfig,
                file.string() + ": expected a salt of 64 hexadecimal digits: restore it, or remove it and get new ids");
  return secret;
}

}  // namespace

IdKey IdKey::load_or_make(const fs::path& file) {
  if (auto secret = read_secret(file)) return IdKey(std::move(*secret));
  if (!file.parent_path().empty()) make_directories(file.parent_path());
  publish_file(file, random_digits(file) + "\n");  // does nothing if another process was faster
  auto secret = read_secret(file);
  if (!secret) throw Error(ErrorKind::kIo, file.string() + ": the salt was removed while it was read");
  return IdKey(std::move(*secret));
}

std::string IdKey::digest(std::string_view kind, std::string_view name) const {
  std::string bytes(kind);
  bytes += '\0';
  bytes += name;
  return to_hex(hmac_sha256(secret_, bytes)).substr(0, 16);
}

std::string IdKey::tenant(std::string_view name) const {
  return name.empty() ? "" : "tenant-" + digest("tenant", name).substr(0, 12);
}

fs::path salt_file(const fs::path& out) {
  fs::path path = fs::absolute(out).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.string() + ".salt";
}

}  // namespace specdec::data
