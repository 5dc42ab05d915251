#include "data/redact/id_key.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/file.h"
#include "base/format.h"
#include "base/sha256.h"

namespace specdec::data {

namespace {

constexpr size_t kSecretBytes = 32, kDigits = 2 * kSecretBytes;
constexpr int kAttempts = 100;  // to open and lock the salt file, which other runs may remove

[[noreturn]] void io_error(const fs::path& path, const char* action) {
  throw Error(ErrorKind::kIo, path.string() + ": " + action + ": " + std::strerror(errno));
}

std::string random_digits(const fs::path& file) {
  std::array<char, kSecretBytes> bytes;
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    io_error(file, "no random bytes for the salt");
  return to_hex({bytes.data(), bytes.size()});
}

// Returns a descriptor of the file, or -1 if it does not exist.
int open_salt(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ELOOP)
    throw Error(ErrorKind::kConfig, file.string() + ": is a link: the salt must be a file of its own");
  if (fd < 0 && errno != ENOENT) io_error(file, "cannot open the salt");
  return fd;
}

// Returns the secret in the opened file. Checks the descriptor and not the path, which may meanwhile lead elsewhere.
std::string read_secret(int fd, const fs::path& file) {
  struct stat info{};
  if (::fstat(fd, &info) != 0) io_error(file, "cannot look at the salt");
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorKind::kConfig, file.string() + ": is no regular file: the salt must be one");
  if (info.st_mode & 077)
    throw Error(ErrorKind::kConfig, file.string() + ": others may read the salt (mode " +
                                        format("%04o", static_cast<unsigned>(info.st_mode & 07777)) +
                                        "): run chmod 600 on it, or draw a new one by removing it");
  std::string text(kDigits + 2, '\0');
  text.resize(read_stream(fd, text, file.string()));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.size() != kDigits || text.find_first_not_of("0123456789abcdef") != text.npos)
    throw Error(ErrorKind::kConfig,
                file.string() + ": expected a salt of 64 hexadecimal digits: restore it, or remove it and get new ids");
  return text;
}

// Returns whether the path still leads to the opened file.
bool is_at(const fs::path& file, int fd) {
  struct stat opened{}, there{};
  return ::fstat(fd, &opened) == 0 && ::lstat(file.c_str(), &there) == 0 && opened.st_dev == there.st_dev &&
         opened.st_ino == there.st_ino;
}

}  // namespace

HeldSalt::HeldSalt(fs::path file) : file_(std::move(file)) {
  try {
    for (int attempt = 0; !hold(); ++attempt) {
      if (attempt == kAttempts)
        throw Error(ErrorKind::kIo, file_.string() + ": the salt was removed while it was read");
      if (!file_.parent_path().empty()) make_directories(file_.parent_path());
      made_ = publish_file(file_, random_digits(file_) + "\n");  // does nothing if another process was faster
    }
    key_ = IdKey(read_secret(fd_, file_));
  } catch (...) {
    give_up();
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

HeldSalt::~HeldSalt() {
  if (fd_ >= 0) ::close(fd_);
}

// Opens the salt file and takes a shared lock. Returns false if there is no such file, or if it was removed before it
// was locked. If the file system has no locks, the file is used without one.
bool HeldSalt::hold() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = open_salt(file_);
  if (fd_ < 0) return false;
  do locked_ = ::flock(fd_, LOCK_SH) == 0;
  while (!locked_ && errno == EINTR);
  return !locked_ || is_at(file_, fd_);
}

// Returns whether the run that made the file has called give_up(). That run marks the file by clearing its owner's
// write permission; the last run that holds a marked file may then remove it.
bool HeldSalt::is_given_up() const {
  struct stat info{};
  return ::fstat(fd_, &info) == 0 && (info.st_mode & S_IWUSR) == 0;
}

void HeldSalt::give_up() {
  if (fd_ < 0 || !locked_) return;
  if (made_) ::fchmod(fd_, S_IRUSR);
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0 || !is_given_up() || !is_at(file_, fd_)) return;
  std::error_code none;
  fs::remove(file_, none);
}

void HeldSalt::keep() {
  if (is_given_up()) ::fchmod(fd_, S_IRUSR | S_IWUSR);
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
