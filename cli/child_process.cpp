#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/progress.h"

namespace specdec::cli {

namespace {

int code_of(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

// Between fork and exec only async-signal-safe calls: argv is built before.
pid_t spawn(const std::string& program, const std::vector<std::string>& arguments, int out, int err) {
  std::vector<char*> argv{const_cast<char*>(program.c_str())};
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(ErrorKind::kInternal, program + ": cannot start a process (" + std::strerror(errno) + ")");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (out >= 0) ::dup2(out, 1);
    if (err >= 0) ::dup2(err, 2);
    ::signal(SIGPIPE, SIG_DFL);
    ::signal(SIGINT, SIG_DFL);
    ::signal(SIGTERM, SIG_DFL);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  return pid;
}

int open_log(const std::filesystem::path& file) {
  const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) throw Error(ErrorKind::kIo, file.string() + ": " + std::strerror(errno));
  return fd;
}

}  // namespace

ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments, const std::filesystem::path& stderr_file) {
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) throw Error(ErrorKind::kInternal, std::string("pipe: ") + std::strerror(errno));
  const int err = stderr_file.empty() ? -1 : open_log(stderr_file);
  const pid_t pid = spawn(program, arguments, pipe_fds[1], err);
  ::close(pipe_fds[1]);
  if (err >= 0) ::close(err);
  ChildResult result;
  char buffer[65536];
  bool told = false;
  for (;;) {
    pollfd waiting{pipe_fds[0], POLLIN, 0};
    const int ready = ::poll(&waiting, 1, 200);
    if (stop_requested() && !told) {
      ::kill(pid, SIGTERM);
      told = true;
    }
    if (ready <= 0) continue;
    const ssize_t n = ::read(pipe_fds[0], buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (result.output.size() < (64u << 20)) result.output.append(buffer, static_cast<size_t>(n));
  }
  ::close(pipe_fds[0]);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  result.exit_code = code_of(status);
  return result;
}

BackgroundChild::BackgroundChild(const std::string& program, const std::vector<std::string>& arguments, const std::filesystem::path& log_file,
                                 double grace_seconds)
    : log_file_(log_file), grace_seconds_(grace_seconds) {
  std::error_code ignored;
  std::filesystem::remove(log_file, ignored);
  const int log = open_log(log_file);
  pid_ = spawn(program, arguments, log, log);
  ::close(log);
}

BackgroundChild::~BackgroundChild() { stop(); }

int BackgroundChild::reap(bool block) {
  if (pid_ < 0) return exit_code_;
  int status = 0;
  const pid_t done = ::waitpid(pid_, &status, block ? 0 : WNOHANG);
  if (done == pid_) {
    exit_code_ = code_of(status);
    pid_ = -1;
  }
  return exit_code_;
}

bool BackgroundChild::running() {
  reap(false);
  return pid_ >= 0;
}

int BackgroundChild::stop() {
  if (!running()) return exit_code_;
  ::kill(pid_, SIGTERM);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(grace_seconds_);
  while (running() && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (running()) {
    ::kill(pid_, SIGKILL);
    reap(true);
  }
  return exit_code_;
}

std::string BackgroundChild::wait_for_line(const std::string& pattern, double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::string last;
  for (;;) {
    const bool alive = running();
    std::ifstream log(log_file_);
    for (std::string line; std::getline(log, line);) {
      const size_t at = line.find(pattern);
      if (at != std::string::npos && !log.eof()) return line.substr(at + pattern.size());
      if (!line.empty()) last = line;
    }
    if (!alive)
      throw Error(ErrorKind::kNetwork, "the server ended with code " + std::to_string(exit_code_) + " before it was ready: " + last);
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal");
    if (std::chrono::steady_clock::now() > end)
      throw Error(ErrorKind::kNetwork, "the server was not ready after " + std::to_string(static_cast<int>(seconds)) + " s: " + last);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace specdec::cli
