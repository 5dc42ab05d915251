// LD_PRELOAD: SIGKILL at the n-th change that any specdec process of a run makes to a regular file or a directory, SQLite's own included.
//   SPECDEC_KILL_COUNTER  file of 8 bytes: the changes so far, shared by all processes
//   SPECDEC_KILL_CHANGE   n; 0 counts only
// A write that is killed has written half of its bytes.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

std::atomic<int64_t>* counter = nullptr;
int64_t kill_at = 0;

__attribute__((constructor)) void start() {
  char exe[4096] = "";
  const ssize_t n = ::readlink("/proc/self/exe", exe, sizeof exe - 1);
  const char* name = n > 0 ? std::strrchr(exe, '/') : nullptr;
  const char* file = std::getenv("SPECDEC_KILL_COUNTER");
  const char* at = std::getenv("SPECDEC_KILL_CHANGE");
  if (!name || std::strcmp(name, "/specdec") != 0 || !file || !at) return;
  const int fd = ::open(file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* page = ::mmap(nullptr, sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) return;
  kill_at = std::atoll(at);
  counter = static_cast<std::atomic<int64_t>*>(page);
}

bool due() { return counter && counter->fetch_add(1) + 1 == kill_at; }
[[noreturn]] void die() {
  ::raise(SIGKILL);
  for (;;) ::pause();
}
bool is_file(int fd) {
  struct stat info {};
  return counter && ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define POINT(result, name, parameters, arguments)                \
  result name parameters {                                        \
    static auto* const real = next<result parameters>(#name);     \
    if (due()) die();                                             \
    return real arguments;                                        \
  }
#define WRITE(name, parameters, half, arguments)                  \
  ssize_t name parameters {                                       \
    static auto* const real = next<ssize_t parameters>(#name);    \
    if (is_file(fd) && due()) {                                   \
      (void)!real half;                                           \
      die();                                                      \
    }                                                             \
    return real arguments;                                        \
  }

extern "C" {
WRITE(write, (int fd, const void* bytes, size_t size), (fd, bytes, size / 2), (fd, bytes, size))
WRITE(pwrite, (int fd, const void* bytes, size_t size, off_t at), (fd, bytes, size / 2, at), (fd, bytes, size, at))
WRITE(pwrite64, (int fd, const void* bytes, size_t size, off_t at), (fd, bytes, size / 2, at), (fd, bytes, size, at))
POINT(int, fsync, (int fd), (fd))
POINT(int, fdatasync, (int fd), (fd))
POINT(int, ftruncate, (int fd, off_t size), (fd, size))
POINT(int, ftruncate64, (int fd, off_t size), (fd, size))
POINT(int, rename, (const char* from, const char* to), (from, to))
POINT(int, unlink, (const char* path), (path))
POINT(int, unlinkat, (int fd, const char* path, int flags), (fd, path, flags))
POINT(int, remove, (const char* path), (path))
POINT(int, mkdir, (const char* path, mode_t mode), (path, mode))
}
