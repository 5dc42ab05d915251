// Injects faults of the file system in tests, by wrapping the C library's calls. This library is preloaded (LD_PRELOAD)
// into the real program or linked into a test; released programs do not contain it. It counts changes made by programs
// whose name begins with "specdec" or contains "_test", SQLite's changes included. A change is the creation or
// truncation of a file, a write, a flush (fsync, fdatasync), a rename, a link, a removal, or a new directory.
//   SPECDEC_KILL_AT=n      SIGKILL instead of the n-th change; if that is a write, half of its bytes are written first
//   SPECDEC_EIO_AT=n       the n-th change fails with EIO; if it is a write, half of its bytes are written first
//   SPECDEC_ENOSPC_AT=n    the n-th change that needs disk space fails with ENOSPC (SPECDEC_EDQUOT_AT=n: with EDQUOT)
//   SPECDEC_FSYNC_AT=n     the n-th flush fails with EIO
//   SPECDEC_SHORT_AT=n     the n-th write writes half of its bytes and returns their number
//   SPECDEC_EINTR_AT=n     the n-th write, flush or read of a file fails with EINTR before it does anything
//   SPECDEC_READ_AT=n      the n-th read of a file fails with EIO
//   SPECDEC_SEND_AT=n      SIGKILL instead of the n-th message over TCP, half of which is sent first. Counts messages
//                          of the main thread and of Gloo's collectives, but not the periodic heartbeats of other
//                          threads
// n counts from 1 in each process separately, from the moment the variable is set. "n@word" applies only to processes
// that were started with the argument `word`.
//   SPECDEC_FAULT_COUNTER=file  8 bytes that hold the count of all processes together
//   SPECDEC_FAULT_BELOW=folder  changes outside of this folder do not count
//   SPECDEC_FAULT_MET=file      receives the path that the fault hit
//   SPECDEC_FAULT_JOURNAL=file  receives every change (tests/faults/power_cut.h replays it); changes that
//                               other programs make are recorded as flushed at once
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <string>

#include "tests/faults/journal.h"

namespace {

using specdec::testing::Change;
using specdec::testing::ChangeKind;
using Kind = ChangeKind;

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}
#define REAL(name, result, ...) static auto* const real = next<result(__VA_ARGS__)>(#name)

ssize_t real_write(int fd, const void* bytes, size_t size) {
  REAL(write, ssize_t, int, const void*, size_t);
  return real(fd, bytes, size);
}
int real_open(const char* path, int flags, mode_t mode = 0) {
  REAL(open, int, const char*, int, ...);
  return real(path, flags, mode);
}

// ---- which programs and folders count ----

bool is_ours() {
  static const bool ours = [] {
    char exe[4096] = "";
    const ssize_t n = ::readlink("/proc/self/exe", exe, sizeof exe - 1);
    const char* name = n > 0 ? std::strrchr(exe, '/') : nullptr;
    return name && (std::strncmp(name, "/specdec", 8) == 0 || std::strstr(name, "_test") != nullptr);
  }();
  return ours;
}

bool has_argument(const std::string& word) {
  static const std::string arguments = [] {
    const int fd = real_open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    std::string text(1, '\0');
    REAL(read, ssize_t, int, void*, size_t);
    char block[4096];
    for (ssize_t n; fd >= 0 && (n = real(fd, block, sizeof block)) > 0;) text.append(block, static_cast<size_t>(n));
    if (fd >= 0) ::close(fd);
    return text;
  }();
  return arguments.find('\0' + word + '\0') != std::string::npos;
}

bool is_below(const std::string& path) {
  const char* root = std::getenv("SPECDEC_FAULT_BELOW");
  if (!root) return true;
  const size_t n = std::strlen(root);
  return path.compare(0, n, root) == 0 && (path.size() == n || path[n] == '/');
}

std::string path_of(int fd) {
  char link[64], path[4096];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = ::readlink(link, path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : "";
}

std::string absolute(int directory, const char* path) {
  std::string whole = path;
  if (*path != '/') {
    char here[4096];
    whole = (directory == AT_FDCWD ? std::string(::getcwd(here, sizeof here) ? here : "") : path_of(directory)) + "/" +
            path;
  }
  whole = std::filesystem::path(whole).lexically_normal().string();
  while (whole.size() > 1 && whole.back() == '/') whole.pop_back();
  return whole;
}

// ---- which fault the environment requests, and at which change ----

constexpr unsigned bit(Kind k) { return 1u << static_cast<unsigned>(k); }
constexpr unsigned kReads = bit(Kind::kRead), kSends = bit(Kind::kSend), kChanges = ~(kReads | kSends);
constexpr unsigned kNeedsRoom =
    bit(Kind::kCreate) | bit(Kind::kWrite) | bit(Kind::kMkdir) | bit(Kind::kSymlink) | bit(Kind::kRename);
struct Fault {
  const char* variable;
  unsigned counts;
  int error;  // errno of the failing call; 0 = the process is killed, -1 = the write is short
};
constexpr Fault kFaults[] = {{"SPECDEC_KILL_AT", kChanges, 0},
                             {"SPECDEC_EIO_AT", kChanges, EIO},
                             {"SPECDEC_ENOSPC_AT", kNeedsRoom, ENOSPC},
                             {"SPECDEC_EDQUOT_AT", kNeedsRoom, EDQUOT},
                             {"SPECDEC_FSYNC_AT", bit(Kind::kFlush), EIO},
                             {"SPECDEC_SHORT_AT", bit(Kind::kWrite), -1},
                             {"SPECDEC_EINTR_AT", bit(Kind::kWrite) | bit(Kind::kFlush) | kReads, EINTR},
                             {"SPECDEC_READ_AT", kReads, EIO},
                             {"SPECDEC_SEND_AT", kSends, 0}};
std::atomic<int64_t> counts[std::size(kFaults)];

std::atomic<int64_t>* shared_counter() {
  static std::atomic<int64_t>* const counter = []() -> std::atomic<int64_t>* {
    const char* file = std::getenv("SPECDEC_FAULT_COUNTER");
    const int fd = file ? real_open(file, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return nullptr;
    void* page = ::mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ::close(fd);
    return page == MAP_FAILED ? nullptr : static_cast<std::atomic<int64_t>*>(page);
  }();
  return counter;
}

const Fault* due(Kind kind, const std::string& path) {
  if (!is_ours()) return nullptr;
  const Fault* met = nullptr;
  for (const Fault& fault : kFaults) {
    if ((fault.counts & bit(kind)) == 0) continue;
    const char* at = std::getenv(fault.variable);
    const char* word = at ? std::strchr(at, '@') : nullptr;
    if (!at || (word && !has_argument(word + 1))) continue;
    std::atomic<int64_t>& count = shared_counter() ? *shared_counter() : counts[&fault - kFaults];
    if (++count == std::atoll(at)) met = &fault;
  }
  if (const char* file = met ? std::getenv("SPECDEC_FAULT_MET") : nullptr) {
    const int fd = real_open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd >= 0 && real_write(fd, path.data(), path.size()) >= 0) ::close(fd);
  }
  return met;
}

[[noreturn]] void die() {
  ::raise(SIGKILL);
  for (;;) ::pause();
}

// ---- the journal ----

class Journal {
 public:
  // A Journal object holds the journal's lock while a change is made and recorded, so that the journal has the changes
  // in the order in which they happened.
  Journal() {
    if (fd() < 0) return;
    mutex().lock();
    ::flock(fd(), LOCK_EX);
  }
  ~Journal() {
    if (fd() < 0) return;
    ::flock(fd(), LOCK_UN);
    mutex().unlock();
  }
  void add(Change change) {
    if (fd() < 0) return;
    change.flushed = !is_ours();
    const std::string bytes = encode(change);
    if (real_write(fd(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) ::abort();
  }

 private:
  static int fd() {
    thread_local pid_t owner = 0;
    thread_local int file = -1;
    if (owner != ::getpid()) {  // flock locks an open file, so every process opens its own
      const char* path = std::getenv("SPECDEC_FAULT_JOURNAL");
      file = path ? real_open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
      owner = ::getpid();
    }
    return file;
  }
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
};

// Makes a change other than a write, and counts it. If a fault was requested for the change with this number, kills the
// process or fails. Records the change if it succeeds.
template <class Call>
int change(const Change& what, Call call) {
  if (!is_below(what.path) && !is_below(what.to)) return call();
  if (const Fault* fault = due(what.kind, what.path)) {
    if (fault->error == 0) die();
    if (fault->error > 0) return errno = fault->error, -1;
  }
  Journal journal;
  const int result = call();
  if (result >= 0) journal.add(what);
  return result;
}

// Returns whether changes of the file `fd` count. For a program under test, descriptors 0 to 2 do not count. For a
// shell they do, because a shell writes redirected files through these descriptors.
bool counted_file(int fd, std::string& path, struct stat& info) {
  if (fd <= 2 && is_ours()) return false;
  if (::fstat(fd, &info) != 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode))) return false;
  path = path_of(fd);
  return is_below(path);
}

template <class Call>
ssize_t written(int fd, const void* bytes, size_t size, int64_t at, Call call) {
  std::string path;
  struct stat info{};
  if (!counted_file(fd, path, info)) return call(bytes, size);
  const Fault* fault = due(Kind::kWrite, path);
  Journal journal;
  if (at < 0 && ::fstat(fd, &info) == 0)
    at = (::fcntl(fd, F_GETFL) & O_APPEND) != 0 ? info.st_size : ::lseek(fd, 0, SEEK_CUR);
  if (fault && fault->error == EINTR) return errno = EINTR, -1;
  const size_t part = fault && size > 1 ? size / 2 : size;
  const ssize_t n = fault && fault->error >= 0 && size == 1 ? 0 : call(bytes, part);
  if (n > 0)
    journal.add({.kind = Kind::kWrite,
                 .path = path,
                 .offset = at,
                 .data = {static_cast<const char*>(bytes), static_cast<size_t>(n)}});
  if (fault && fault->error == 0) die();
  if (fault && fault->error > 0) return errno = fault->error, -1;
  return n;
}

template <class Call>
ssize_t read_from(int fd, Call call) {
  std::string path;
  struct stat info{};
  if (!std::getenv("SPECDEC_READ_AT") && !std::getenv("SPECDEC_EINTR_AT")) return call();
  if (counted_file(fd, path, info))
    if (const Fault* fault = due(Kind::kRead, path)) return errno = fault->error, -1;
  return call();
}

// Counts a message that is sent to another process over TCP. If it is the chosen message, sends half of it and kills
// this process.
void about_to_send(int fd, const void* bytes, size_t size) {
  sockaddr_storage peer{};
  socklen_t room = sizeof peer;
  if (!std::getenv("SPECDEC_SEND_AT") || ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &room) != 0) return;
  if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) return;
  if (!due(Kind::kSend, "a message of " + std::to_string(size) + " bytes")) return;
  static_cast<void>(real_write(fd, bytes, size / 2) + 1);
  die();
}

template <class Call>
int on_descriptor(int fd, Kind kind, int64_t size, Call call) {
  std::string path;
  struct stat info{};
  if (!counted_file(fd, path, info)) return call();
  return change({.kind = kind, .path = path, .offset = size}, call);
}

template <class Call>
int opened(int directory, const char* path, int flags, mode_t mode, Call call) {
  if ((flags & (O_CREAT | O_TRUNC)) == 0) return call();
  struct stat info{};
  const bool there = ::fstatat(directory, path, &info, 0) == 0;
  if (there && ((flags & O_TRUNC) == 0 || !S_ISREG(info.st_mode) || info.st_size == 0)) return call();
  if (!there && (flags & O_CREAT) == 0) return call();
  return change({.kind = there ? Kind::kTruncate : Kind::kCreate,
                 .path = absolute(directory, path),
                 .offset = there ? 0 : static_cast<int64_t>(mode)},
                call);
}

}  // namespace

#define MODE_ARGUMENT                         \
  mode_t mode = 0;                            \
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) { \
    va_list list;                             \
    va_start(list, flags);                    \
    mode = va_arg(list, mode_t);              \
    va_end(list);                             \
  }
#define OPEN(name)                                                                       \
  int name(const char* path, int flags, ...) {                                           \
    MODE_ARGUMENT                                                                        \
    REAL(name, int, const char*, int, ...);                                              \
    return opened(AT_FDCWD, path, flags, mode, [&] { return real(path, flags, mode); }); \
  }
#define OPENAT(name)                                                                   \
  int name(int at, const char* path, int flags, ...) {                                 \
    MODE_ARGUMENT                                                                      \
    REAL(name, int, int, const char*, int, ...);                                       \
    return opened(at, path, flags, mode, [&] { return real(at, path, flags, mode); }); \
  }
#define PWRITE(name)                                                                                  \
  ssize_t name(int fd, const void* bytes, size_t size, off_t at) {                                    \
    REAL(name, ssize_t, int, const void*, size_t, off_t);                                             \
    return written(fd, bytes, size, at, [&](const void* b, size_t n) { return real(fd, b, n, at); }); \
  }
#define PREAD(name)                                                  \
  ssize_t name(int fd, void* bytes, size_t size, off_t at) {         \
    REAL(name, ssize_t, int, void*, size_t, off_t);                  \
    return read_from(fd, [&] { return real(fd, bytes, size, at); }); \
  }
#define FLUSH(name)                                                      \
  int name(int fd) {                                                     \
    REAL(name, int, int);                                                \
    return on_descriptor(fd, Kind::kFlush, 0, [&] { return real(fd); }); \
  }
#define CUT(name)                                                                    \
  int name(int fd, off_t size) noexcept {                                            \
    REAL(name, int, int, off_t);                                                     \
    return on_descriptor(fd, Kind::kTruncate, size, [&] { return real(fd, size); }); \
  }

extern "C" {
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
PWRITE(pwrite)
PWRITE(pwrite64)
PREAD(pread)
PREAD(pread64)
FLUSH(fsync)
FLUSH(fdatasync)
CUT(ftruncate)
CUT(ftruncate64)
ssize_t write(int fd, const void* bytes, size_t size) {
  return written(fd, bytes, size, -1, [&](const void* b, size_t n) { return real_write(fd, b, n); });
}
ssize_t writev(int fd, const struct iovec* parts, int count) {  // counts as one write of all the bytes
  std::string all, path;
  struct stat info{};
  REAL(writev, ssize_t, int, const struct iovec*, int);
  if (!counted_file(fd, path, info)) {
    if (count > 0) about_to_send(fd, parts[0].iov_base, parts[0].iov_len);
    return real(fd, parts, count);
  }
  for (int i = 0; i < count; ++i) all.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
  return write(fd, all.data(), all.size());
}
ssize_t send(int fd, const void* bytes, size_t size, int flags) {
  REAL(send, ssize_t, int, const void*, size_t, int);
  if (::gettid() == ::getpid()) about_to_send(fd, bytes, size);
  return real(fd, bytes, size, flags);
}
ssize_t read(int fd, void* bytes, size_t size) {
  REAL(read, ssize_t, int, void*, size_t);
  return read_from(fd, [&] { return real(fd, bytes, size); });
}
int truncate(const char* path, off_t size) noexcept {
  REAL(truncate, int, const char*, off_t);
  return change({.kind = Kind::kTruncate, .path = absolute(AT_FDCWD, path), .offset = size},
                [&] { return real(path, size); });
}
int rename(const char* from, const char* to) noexcept {
  REAL(rename, int, const char*, const char*);
  return change({.kind = Kind::kRename, .path = absolute(AT_FDCWD, from), .to = absolute(AT_FDCWD, to)},
                [&] { return real(from, to); });
}
int renameat(int a, const char* from, int b, const char* to) noexcept {
  REAL(renameat, int, int, const char*, int, const char*);
  return change({.kind = Kind::kRename, .path = absolute(a, from), .to = absolute(b, to)},
                [&] { return real(a, from, b, to); });
}
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) noexcept {
  REAL(renameat2, int, int, const char*, int, const char*, unsigned);
  const Kind kind = (flags & RENAME_EXCHANGE) != 0 ? Kind::kExchange : Kind::kRename;
  return change({.kind = kind, .path = absolute(a, from), .to = absolute(b, to)},
                [&] { return real(a, from, b, to, flags); });
}
int symlink(const char* target, const char* path) noexcept {
  REAL(symlink, int, const char*, const char*);
  return change({.kind = Kind::kSymlink, .path = absolute(AT_FDCWD, path), .data = target},
                [&] { return real(target, path); });
}
int link(const char* from, const char* to) noexcept {
  REAL(link, int, const char*, const char*);
  return change({.kind = Kind::kLink, .path = absolute(AT_FDCWD, from), .to = absolute(AT_FDCWD, to)},
                [&] { return real(from, to); });
}
int unlink(const char* path) noexcept {
  REAL(unlink, int, const char*);
  return change({.kind = Kind::kRemove, .path = absolute(AT_FDCWD, path)}, [&] { return real(path); });
}
int rmdir(const char* path) noexcept {
  REAL(rmdir, int, const char*);
  return change({.kind = Kind::kRemove, .path = absolute(AT_FDCWD, path)}, [&] { return real(path); });
}
int remove(const char* path) noexcept {
  REAL(remove, int, const char*);
  return change({.kind = Kind::kRemove, .path = absolute(AT_FDCWD, path)}, [&] { return real(path); });
}
int unlinkat(int at, const char* path, int flags) noexcept {
  REAL(unlinkat, int, int, const char*, int);
  return change({.kind = Kind::kRemove, .path = absolute(at, path)}, [&] { return real(at, path, flags); });
}
int mkdir(const char* path, mode_t mode) noexcept {
  REAL(mkdir, int, const char*, mode_t);
  return change({.kind = Kind::kMkdir, .path = absolute(AT_FDCWD, path)}, [&] { return real(path, mode); });
}
// Always fails, so that callers fall back to reading and writing: a copy inside the kernel could not be recorded.
ssize_t copy_file_range(int in, off64_t* from, int out, off64_t* to, size_t size, unsigned flags) {
  REAL(copy_file_range, ssize_t, int, off64_t*, int, off64_t*, size_t, unsigned);
  std::string path;
  struct stat info{};
  if (counted_file(out, path, info)) return errno = EXDEV, -1;
  return real(in, from, out, to, size, flags);
}
ssize_t sendfile(int out, int in, off_t* from, size_t size) noexcept {
  REAL(sendfile, ssize_t, int, int, off_t*, size_t);
  std::string path;
  struct stat info{};
  if (counted_file(out, path, info)) return errno = EINVAL, -1;
  return real(out, in, from, size);
}
}
