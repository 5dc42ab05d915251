#include "monitor/child.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"

namespace specdec::monitor {

namespace {

// Told to stop it waits for its child, and then still writes the code. $0 is the file, "$@" the command.
constexpr const char* kWrapper = "trap : TERM INT HUP; \"$@\"; code=$?; printf '%s\\n' $code > \"$0.tmp\" && mv -f \"$0.tmp\" \"$0\"; exit $code";

fs::path code_file(const fs::path& outcome) { return outcome.string() + ".code"; }
fs::path output_file(const fs::path& outcome) { return outcome.string() + ".out"; }

struct Prepared {
  std::vector<std::string> argv, environment;
  std::vector<char*> argp, envp;
};

Prepared prepare(const ChildOrder& order) {
  Prepared p;
  p.argv = {"/bin/sh", "-c", kWrapper, code_file(order.outcome).string()};
  p.argv.insert(p.argv.end(), order.argv.begin(), order.argv.end());
  for (char** e = ::environ; *e; ++e) p.environment.emplace_back(*e);
  for (const auto& [key, value] : order.environment) p.environment.push_back(key + "=" + value);
  for (std::string& a : p.argv) p.argp.push_back(a.data());
  for (std::string& e : p.environment) p.envp.push_back(e.data());
  p.argp.push_back(nullptr);
  p.envp.push_back(nullptr);
  return p;
}

// Between fork and exec only async-signal-safe calls. A process group of its own: a stop request reaches all of it.
pid_t spawn(const ChildOrder& order) {
  const Prepared prepared = prepare(order);
  const int out = order.capture ? ::open(output_file(order.outcome).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644) : -1;
  if (order.capture && out < 0) throw Error(ErrorKind::kIo, output_file(order.outcome).string() + ": " + std::strerror(errno));
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::dup2(order.capture ? out : 2, 1);
    if (order.lock >= 0) ::fcntl(order.lock, F_SETFD, 0);
    for (const int s : {SIGPIPE, SIGINT, SIGTERM}) ::signal(s, SIG_DFL);
    ::execve("/bin/sh", prepared.argp.data(), prepared.envp.data());
    ::_exit(127);
  }
  const int error = errno;
  if (out >= 0) ::close(out);
  if (pid < 0) throw Error(ErrorKind::kInternal, order.argv.front() + ": cannot start a process: " + std::strerror(error));
  return pid;
}

int wait_for(pid_t pid) {
  int status = 0;
  bool told = false;
  for (int pause_ms = 1;; pause_ms = std::min(2 * pause_ms, 100)) {
    const pid_t done = ::waitpid(pid, &status, WNOHANG);
    if (done == pid) return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (done < 0 && errno != EINTR) throw Error(ErrorKind::kInternal, std::string("waitpid: ") + std::strerror(errno));
    if (stop_requested() && !told) {
      ::kill(-pid, SIGTERM);
      told = true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
  }
}

}  // namespace

ChildEnd run_child(const ChildOrder& order) {
  make_directories(fs::absolute(order.outcome).parent_path());
  ChildEnd end;
  if (fs::exists(code_file(order.outcome))) {
    end.code = std::atoi(read_file(code_file(order.outcome), 64).c_str());
  } else {
    end.code = wait_for(spawn(order));
  }
  if (order.capture && fs::exists(output_file(order.outcome))) end.output = read_file(output_file(order.outcome), 16u << 20);
  return end;
}

void forget_outcome(const fs::path& outcome) {
  std::error_code ignored;
  fs::remove(code_file(outcome), ignored);
  fs::remove(output_file(outcome), ignored);
}

std::vector<std::string> shell(const std::string& command) { return {"/bin/sh", "-c", command}; }

}  // namespace specdec::monitor
