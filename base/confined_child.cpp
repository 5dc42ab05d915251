#include "base/confined_child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"

namespace specdec {

namespace {

void bound(__rlimit_resource resource, uint64_t most) {
  const rlimit limit{most, most};
  setrlimit(resource, &limit);
}

}  // namespace

uint64_t address_space_bytes() {
  char text[32] = {};
  const int statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  const ssize_t size = statm < 0 ? -1 : ::read(statm, text, sizeof text - 1);
  if (statm >= 0) close(statm);
  const uint64_t pages = size > 0 ? std::strtoull(text, nullptr, 10) : 0;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void confine(const ChildLimits& limits, uint64_t space) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  bound(RLIMIT_AS, space + limits.memory_bytes);
  bound(RLIMIT_CORE, 0);
  if (limits.cpu_seconds) bound(RLIMIT_CPU, static_cast<uint64_t>(limits.cpu_seconds));
  for (const int number : {SIGALRM, SIGPROF, SIGABRT, SIGSEGV, SIGBUS, SIGXCPU, SIGPIPE}) std::signal(number, SIG_DFL);
  // A terminal sends SIGINT to parent and child alike. The child ignores stop signals; the parent decides what to do.
  for (const int number : {SIGINT, SIGTERM}) std::signal(number, SIG_IGN);
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_UNBLOCK, &all, nullptr);
  alarm(static_cast<unsigned>(limits.wall_seconds));
  const int null = open("/dev/null", O_WRONLY);
  if (null >= 0) dup2(null, STDERR_FILENO);
}

ConfinedChild::ConfinedChild(const ChildLimits& limits, const std::function<void(int)>& work) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorKind::kIo, std::string("pipe: ") + std::strerror(errno));
  const uint64_t space = address_space_bytes();
  pid_ = fork();
  if (pid_ < 0) {
    const int reason = errno;
    close(ends[0]), close(ends[1]);
    throw Error(ErrorKind::kIo, std::string("fork: ") + std::strerror(reason));
  }
  if (pid_ == 0) {
    close(ends[0]);
    confine(limits, space);
    try {
      work(ends[1]);
    } catch (...) {  // ends the child; the parent notices that the pipe ends too early
    }
    _exit(0);
  }
  close(ends[1]);
  pipe_ = ends[0];
}

ConfinedChild::~ConfinedChild() {
  if (pipe_ >= 0) close(pipe_);
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  death();
}

size_t ConfinedChild::read(std::span<char> out) {
  const size_t n = read_stream(pipe_, out, "pipe");
  if (n < out.size() && stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal: nothing was written");
  return n;
}

std::string ConfinedChild::death() {
  int status = 0;
  pid_t reaped = -1;
  while (pid_ >= 0 && (reaped = waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
  }
  const bool killed = reaped >= 0 && WIFSIGNALED(status);
  pid_ = -1;
  return killed ? std::string(" by signal ") + strsignal(WTERMSIG(status)) : "";
}

void write_pipe(int pipe, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(pipe, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) _exit(1);
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

}  // namespace specdec
