#include "base/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/file.h"

namespace specdec {

FileLock::FileLock(const fs::path& path) {
  fd_ = open_file(path, O_RDWR | O_CREAT | O_NONBLOCK | O_NOFOLLOW);
  struct stat info{};
  if (::fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw Error(ErrorKind::kIo, path.string() + ": cannot lock: expected a regular file");
  }
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    char owner[24] = "";
    const ssize_t n = ::pread(fd_, owner, sizeof owner - 1, 0);
    ::close(fd_);
    if (error != EWOULDBLOCK) io_error(path, "cannot lock", error);
    const std::string who = n > 0 ? "process " + std::string(owner, static_cast<size_t>(n)) : "another process";
    throw Error(ErrorKind::kNetwork, path.string() + ": lock held by " + who + ": try again when it is done");
  }
  // The process id is stored only for the error message of another process, so the lock is kept even if writing the id
  // fails.
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, pid.data(), pid.size(), 0) < 0) return;
}

FileLock::~FileLock() { ::close(fd_); }

DirectoryLock::DirectoryLock(const fs::path& directory, Kind kind) {
  fd_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0) {
    if (errno != ENOENT && errno != ENOTDIR) io_error(directory, "cannot open directory", errno);
    return;
  }
  struct stat locked{}, named{};
  if (::flock(fd_, (kind == Kind::kShared ? LOCK_SH : LOCK_EX) | LOCK_NB) != 0)
    state_ = errno == EWOULDBLOCK ? State::kTaken : State::kUnsupported;
  else if (::fstat(fd_, &locked) == 0 && ::stat(directory.c_str(), &named) == 0 && locked.st_dev == named.st_dev &&
           locked.st_ino == named.st_ino)
    state_ = State::kHeld;
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace specdec
