#include "base/child.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/progress.h"

namespace specdec {

namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  for (std::string& s : strings) all.push_back(s.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

// Only async-signal-safe calls are allowed between fork and exec, so everything is built before the fork.
Child::Child(const ChildStart& start) : group_(start.outlives_us) {
  std::vector<std::string> arguments = start.argv, environment;
  for (char** e = ::environ; *e; ++e) environment.emplace_back(*e);
  for (const auto& [key, value] : start.environment) environment.push_back(key + "=" + value);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  pid_ = ::fork();
  if (pid_ < 0) throw Error(ErrorKind::kInternal, start.argv[0] + ": cannot start a process: " + std::strerror(errno));
  if (start.outlives_us) ::setpgid(pid_, 0);  // called by parent and child, so it does not matter which runs first
  if (pid_ > 0) return;
  if (!start.outlives_us) ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (start.out >= 0) ::dup2(start.out, STDOUT_FILENO);
  if (start.err >= 0) ::dup2(start.err, STDERR_FILENO);
  if (start.keep >= 0) ::fcntl(start.keep, F_SETFD, 0);
  for (const int number : {SIGPIPE, SIGINT, SIGTERM}) ::signal(number, SIG_DFL);
  if (!start.directory.empty() && ::chdir(start.directory.c_str()) != 0) ::_exit(127);
  ::execve(argv[0], argv.data(), envp.data());
  ::_exit(127);
}

std::optional<int> Child::code() {
  if (code_) return code_;
  int status = 0;
  const pid_t done = ::waitpid(pid_, &status, WNOHANG);
  if (done < 0 && errno != EINTR)
    throw Error(ErrorKind::kInternal,
                std::string("the exit code of a child is lost: waitpid: ") + std::strerror(errno));
  if (done == pid_) code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return code_;
}

void Child::signal(int number) {
  if (!code_) ::kill(group_ ? -pid_ : pid_, number);
}

void Child::hand_on_stop() {
  if (stop_requested() && !std::exchange(told_, true)) signal(SIGTERM);
}

int Child::wait() {
  for (int pause_ms = 1; !code(); pause_ms = std::min(2 * pause_ms, 100)) {
    hand_on_stop();
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
  return *code_;
}

}  // namespace specdec
