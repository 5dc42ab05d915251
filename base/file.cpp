#include "base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/progress.h"

namespace specdec {

void io_error(const fs::path& path, const std::string& action, int error) {
  std::string hint;
  if (error == ENOSPC || error == EDQUOT) hint = " (free some space and run the command again)";
  throw Error(ErrorKind::kIo, path.string() + ": " + action + ": " + std::strerror(error) + hint);
}

namespace {

constexpr size_t kBlockBytes = 1u << 20;
const char kPartialSuffix[] = ".partial";

// Returns a reference to the number of PublicFiles objects that exist in this thread.
int& public_files() {
  thread_local int count = 0;
  return count;
}

// file_mode() returns the mode for open, directory_mode() the mode for mkdir. The umask can only remove permissions.
mode_t file_mode() { return public_files() > 0 ? 0664 : 0600; }
mode_t directory_mode() { return public_files() > 0 ? 0775 : 0700; }

// Repeats a call while a signal interrupts it.
template <class Call>
auto uninterrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    io_error(to, "cannot rename " + from.filename().string() + " to it", errno);
}

// Renames `from` to `to`. Returns 0 or the error number.
int rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  return (flags ? ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags)
                : ::rename(from.c_str(), to.c_str())) == 0
             ? 0
             : errno;
}

// Returns "<path>.<16 random hex digits>.partial", which is unique over processes and machines, so no lock is needed.
fs::path partial_name(const fs::path& path) {
  uint64_t bits = 0;
  if (::getrandom(&bits, sizeof bits, 0) != sizeof bits) io_error(path, "no random name for the temporary file", errno);
  return path.string() + format(".%016llx%s", static_cast<unsigned long long>(bits), kPartialSuffix);
}

fs::path parent_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

fs::path without_trailing_slash(const fs::path& path) { return path.has_filename() ? path : path.parent_path(); }

void fsync_tree(const fs::path& directory) {
  std::error_code ec;
  for (fs::directory_iterator it(directory, ec), end; !ec && it != end; it.increment(ec))
    if (it->is_directory() && !it->is_symlink()) fsync_tree(it->path());
  if (ec) throw Error(ErrorKind::kIo, directory.string() + ": cannot list: " + ec.message());
  fsync_directory(directory);
}

// Fills the new directory `tmp`, makes it durable, and calls `publish`, which renames it. Removes `tmp` after an error.
template <class Fill, class Publish>
auto build_directory(const fs::path& tmp, Fill fill, Publish publish) {
  make_directories(tmp);
  try {
    fill();
    fsync_tree(tmp);
    return publish();
  } catch (...) {
    try {
      remove_tree(tmp);
    } catch (const Error&) {
      // A failure to remove `tmp` is ignored: the first error is thrown below, and remove_partials() removes `tmp`
      // later.
    }
    throw;
  }
}

// Renames `tmp` to `destination` and returns true. If `destination` exists, removes `tmp` and returns false.
bool publish_without_replacing(const fs::path& tmp, const fs::path& destination) {
  int error = rename_with(tmp, destination, RENAME_NOREPLACE);
  // A file system such as NFS lacks RENAME_NOREPLACE. There, a plain rename of a directory still refuses to replace a
  // directory that is not empty, and link() never replaces a file.
  if (error == EINVAL || error == ENOSYS) {
    if (fs::is_directory(tmp)) {
      error = rename_with(tmp, destination, 0);
    } else {
      error = ::link(tmp.c_str(), destination.c_str()) == 0 ? 0 : errno;
      if (error == 0) remove_tree(tmp);
    }
  }
  if (error == EEXIST || error == ENOTEMPTY || error == ENOTDIR) {
    remove_tree(tmp);
    return false;
  }
  if (error) io_error(destination, "cannot publish", error);
  fsync_directory(parent_of(destination));
  return true;
}

}  // namespace

// ---- permissions ----

PublicFiles::PublicFiles() { ++public_files(); }
PublicFiles::~PublicFiles() { --public_files(); }

int open_file(const fs::path& path, int flags) {
  const int fd = uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NOCTTY, file_mode()); });
  if (fd < 0) io_error(path, flags & O_CREAT ? "cannot create" : "cannot open", errno);
  return fd;
}

void write_all(int fd, std::string_view bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t n = uninterrupted([&] { return ::write(fd, bytes.data(), bytes.size()); });
    if (n <= 0) io_error(path, "cannot write", n < 0 ? errno : EIO);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void flush_to_disk(int fd, const fs::path& path) {
  if (uninterrupted([&] { return ::fsync(fd); }) != 0) io_error(path, "cannot flush to disk", errno);
}

// ---- reading ----

size_t read_stream(int fd, std::span<char> out, const std::string& what) {
  size_t n = 0;
  while (n < out.size()) {
    const ssize_t got = ::read(fd, out.data() + n, out.size() - n);
    if (got < 0 && errno == EINTR) {
      if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal: nothing was written");
      continue;
    }
    if (got < 0) throw Error(ErrorKind::kIo, what + ": " + std::strerror(errno));
    if (got == 0) break;
    n += static_cast<size_t>(got);
  }
  return n;
}

InputFile::InputFile(fs::path path, ErrorKind kind) : path_(std::move(path)), kind_(kind) {
  // O_NONBLOCK, because opening a FIFO without a writer must not hang.
  fd_ = uninterrupted([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); });
  if (fd_ < 0) {
    const int error = errno;
    const bool absent =
        error == ENOENT || error == ENOTDIR || error == ELOOP || error == ENXIO || error == ENAMETOOLONG;
    throw Error(absent ? kind : ErrorKind::kIo, path_.string() + ": cannot open: " + std::strerror(error));
  }
  struct stat info{};
  const int failed = ::fstat(fd_, &info) != 0 ? errno : 0;
  if (failed || !S_ISREG(info.st_mode)) {
    ::close(fd_);
    if (failed) io_error(path_, "cannot inspect", failed);
    throw Error(kind, path_.string() + ": expected a regular file, found " +
                          (S_ISDIR(info.st_mode) ? "a directory" : "a device, pipe or socket"));
  }
  size_ = static_cast<uint64_t>(info.st_size);
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), kind_(other.kind_), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  if (offset > size_ || out.size() > size_ - offset)
    throw Error(kind_, path_.string() + ": expected " + std::to_string(out.size()) + " bytes at byte " +
                           std::to_string(offset) + ", the file has " + std::to_string(size_));
  for (size_t done = 0; done < out.size();) {
    const ssize_t n = uninterrupted(
        [&] { return ::pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done)); });
    if (n < 0) io_error(path_, "cannot read", errno);
    if (n == 0)
      throw Error(kind_, path_.string() + ": became shorter while it was read (another program writes to it)");
    done += static_cast<size_t>(n);
  }
}

std::string read_file(const fs::path& path, size_t max_bytes, ErrorKind kind) {
  const InputFile file(path, kind);
  if (file.size() > max_bytes)
    throw Error(
        kind, path.string() + ": " + std::to_string(file.size()) + " bytes, the limit is " + std::to_string(max_bytes));
  std::string bytes(file.size(), '\0');
  file.read(0, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

// ---- writing ----

OutputFile::OutputFile(fs::path path, Open how)
    : path_(std::move(path)),
      how_(how),
      fd_(open_file(path_, O_WRONLY | O_CREAT | O_NOFOLLOW | (how == Open::kNew ? O_TRUNC : O_APPEND))) {}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (how_ == Open::kNew) ::unlink(path_.c_str());
}

void OutputFile::write(std::string_view bytes) {
  if (fd_ < 0) throw Error(ErrorKind::kInternal, path_.string() + ": written to after it was finished");
  buffer_.append(bytes.substr(0, std::min(bytes.size(), kBlockBytes)));
  if (buffer_.size() >= kBlockBytes) flush();
  if (bytes.size() > kBlockBytes) {
    flush();
    write_all(fd_, bytes.substr(kBlockBytes), path_);
  }
}

void OutputFile::flush() {
  write_all(fd_, buffer_, path_);
  buffer_.clear();
}

void OutputFile::finish() {
  if (fd_ < 0) return;
  flush();
  try {
    flush_to_disk(fd_, path_);
  } catch (const Error&) {
    how_ = Open::kNew;  // the content on disk is unknown, so the destructor removes the file
    throw;
  }
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {  // Linux closes the descriptor even on EINTR
    const int error = errno;
    ::unlink(path_.c_str());
    io_error(path_, "cannot close", error);
  }
}

void rename_file(const fs::path& from, const fs::path& to) {
  rename_path(from, to);
  fsync_directory(parent_of(to));
}

namespace {
void rename_or_remove(const fs::path& tmp, const fs::path& path) {
  try {
    rename_file(tmp, path);
  } catch (const Error&) {
    ::unlink(tmp.c_str());
    throw;
  }
}
}  // namespace

void write_file_atomic(const fs::path& path, std::string_view bytes) {
  const fs::path tmp = partial_name(path);
  OutputFile file(tmp);
  file.write(bytes);
  file.finish();
  rename_or_remove(tmp, path);
}

bool publish_file(const fs::path& path, std::string_view bytes) {
  const fs::path tmp = partial_name(path);
  {
    OutputFile file(tmp);
    file.write(bytes);
    file.finish();
  }
  try {
    return publish_without_replacing(tmp, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(tmp, ignored);
    throw;
  }
}

void write_link_atomic(const fs::path& path, const fs::path& target) {
  const auto make = [&target](const fs::path& link) {
    return ::symlink(target.c_str(), link.c_str()) == 0 ? 0 : errno;
  };
  int error = make(path);  // tries without a temporary name first, because a crash could leave a temporary link behind
  if (error == 0) return fsync_directory(parent_of(path));
  std::error_code ec;
  if (error == EEXIST && fs::read_symlink(path, ec) == target) return;
  const fs::path tmp = partial_name(path);
  if (error == EEXIST) error = make(tmp);
  if (error) io_error(path, "cannot make the symbolic link", error);
  rename_or_remove(tmp, path);
}

void append_line(const fs::path& path, std::string_view line, bool durable) {
  const int fd = open_file(path, O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_NOFOLLOW);
  struct stat info{};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(ErrorKind::kIo,
                path.string() + ": expected a regular file to append to, found a device, pipe or socket");
  }
  // A writer killed in the middle of a line leaves no newline at the end. A newline is added first, so that only that
  // incomplete line is lost and not the new one.
  std::string text;
  char last = '\n';
  if (info.st_size > 0 && uninterrupted([&] { return ::pread(fd, &last, 1, info.st_size - 1); }) == 1 && last != '\n')
    text = "\n";
  text.append(line).append("\n");
  try {
    write_all(fd, text, path);
    if (durable) flush_to_disk(fd, path);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  if (durable && info.st_size == 0) fsync_directory(parent_of(path));
}

void fsync_directory(const fs::path& directory) {
  const int fd = open_file(directory, O_RDONLY | O_DIRECTORY);
  try {
    flush_to_disk(fd, directory);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
}

void copy_regular_file(const fs::path& from, const fs::path& to, ErrorKind kind) {
  const InputFile in(from, kind);
  OutputFile out(to);
  std::string block(std::min<uint64_t>(in.size(), kBlockBytes), '\0');
  for (uint64_t at = 0; at < in.size();) {
    const size_t n = std::min<uint64_t>(block.size(), in.size() - at);
    in.read(at, std::as_writable_bytes(std::span(block.data(), n)));
    out.write(std::string_view(block.data(), n));
    at += n;
  }
  out.finish();
}

// ---- directories ----

void make_directories(const fs::path& directory) {
  std::error_code ec;
  if (fs::is_directory(directory, ec)) return;
  if (directory.has_parent_path() && directory.parent_path() != directory) make_directories(directory.parent_path());
  if (!directory.has_filename()) return;  // "a/b/": its parent "a/b" was just created
  if (::mkdir(directory.c_str(), directory_mode()) != 0) {
    const int error = errno;
    if (error != EEXIST || !fs::is_directory(directory, ec)) io_error(directory, "cannot create directory", error);
  }
  if (::access(parent_of(directory).c_str(), R_OK) == 0) fsync_directory(parent_of(directory));
}

void make_private_directory(const fs::path& directory) {
  make_directories(directory);
  struct stat info{};
  if (::stat(directory.c_str(), &info) != 0 || (info.st_mode & 077) == 0) return;
  static std::mutex mutex;
  static std::set<fs::path> said;
  const std::lock_guard guard(mutex);
  if (!said.insert(without_trailing_slash(fs::absolute(directory).lexically_normal())).second) return;
  log(LogLevel::kWarn, directory.string() + ": other users can " +
                           ((info.st_mode & 022) != 0 ? "write to" : "look into") + " this directory (mode " +
                           format("%04o", info.st_mode & 07777) +
                           "), and it will hold data that is yours alone: chmod 700 " + directory.string());
}

void remove_tree(const fs::path& path) {
  std::error_code ec;
  const fs::file_status status = fs::symlink_status(path, ec);
  if (status.type() == fs::file_type::not_found) return;
  const bool directory = status.type() == fs::file_type::directory;
  if (directory) {
    std::vector<fs::path> entries;
    for (fs::directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec)) entries.push_back(it->path());
    if (ec && ec != std::errc::no_such_file_or_directory)
      throw Error(ErrorKind::kIo, path.string() + ": cannot list: " + ec.message());
    for (const fs::path& entry : entries) remove_tree(entry);
  }
  if ((directory ? ::rmdir(path.c_str()) : ::unlink(path.c_str())) != 0 && errno != ENOENT)
    io_error(path, "cannot remove", errno);
}

bool publish_directory(const fs::path& given, const std::function<void(const fs::path&)>& fill) {
  const fs::path destination = without_trailing_slash(given), tmp = partial_name(destination);
  return build_directory(tmp, [&] { fill(tmp); }, [&] { return publish_without_replacing(tmp, destination); });
}

Published publish_from(const fs::path& workshop, const std::function<fs::path(const fs::path&)>& fill) {
  const fs::path tmp = partial_name(workshop / "build");
  fs::path destination;
  return build_directory(
      tmp, [&] { destination = fill(tmp); },
      [&] {
        make_directories(parent_of(destination));
        return Published{destination, publish_without_replacing(tmp, destination)};
      });
}

void replace_directory(const fs::path& given, const std::function<void(const fs::path&)>& fill) {
  const fs::path destination = without_trailing_slash(given), tmp = partial_name(destination);
  build_directory(
      tmp, [&] { fill(tmp); },
      [&] {
        for (;;) {
          int error = rename_with(tmp, destination, RENAME_NOREPLACE);
          if (error == EEXIST) error = rename_with(tmp, destination, RENAME_EXCHANGE);
          if (error == ENOENT && fs::exists(tmp)) continue;  // `destination` was removed after the first rename
          if (error) io_error(destination, "cannot publish (the file system must support renameat2)", error);
          break;
        }
        fsync_directory(parent_of(destination));
        remove_tree(tmp);  // tmp now has the old content, if there was any
      });
}

void remove_partials(const fs::path& parent, int64_t older_than_seconds) {
  std::vector<fs::path> stale;
  std::error_code ec;
  for (fs::directory_iterator it(parent, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    struct stat info{};
    if (name.ends_with(kPartialSuffix) && ::lstat(it->path().c_str(), &info) == 0 &&
        std::time(nullptr) - info.st_mtime >= older_than_seconds)
      stale.push_back(it->path());
  }
  for (const fs::path& path : stale) remove_tree(path);
}

// ---- space ----

uint64_t free_disk_bytes(const fs::path& path) {
  std::error_code ec;
  fs::path existing = fs::absolute(path, ec);
  while (!fs::exists(existing, ec) && existing.has_parent_path() && existing != existing.parent_path())
    existing = existing.parent_path();
  struct statvfs info{};
  if (::statvfs(existing.c_str(), &info) != 0) io_error(existing, "cannot read the free space", errno);
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace specdec
