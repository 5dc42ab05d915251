#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"

namespace specdec::cli {

namespace {

int open_log(const std::filesystem::path& file) { return open_file(file, O_WRONLY | O_CREAT | O_APPEND); }

std::vector<std::string> argv_of(const std::string& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program);
  return arguments;
}

Child start_server(const std::string& program, const std::vector<std::string>& arguments,
                   const std::filesystem::path& log_file) {
  std::error_code ignored;
  std::filesystem::remove(log_file, ignored);
  const int log = open_log(log_file);
  Child child(ChildStart{.argv = argv_of(program, arguments), .out = log, .err = log});
  ::close(log);
  return child;
}

}  // namespace

ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments,
                      const std::filesystem::path& stderr_file, const std::filesystem::path& directory,
                      double most_seconds) {
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0)
    throw Error(ErrorKind::kInternal, std::string("pipe: ") + std::strerror(errno));
  const int err = stderr_file.empty() ? -1 : open_log(stderr_file);
  Child child(
      ChildStart{.argv = argv_of(program, arguments), .out = pipe_fds[1], .err = err, .directory = directory.string()});
  ::close(pipe_fds[1]);
  if (err >= 0) ::close(err);
  ChildResult result;
  char buffer[65536];
  const SystemClock clock;
  const double end = clock.seconds() + most_seconds;
  while (!result.late) {
    pollfd waiting{pipe_fds[0], POLLIN, 0};
    const int ready = ::poll(&waiting, 1, 200);
    child.hand_on_stop();
    result.late = clock.seconds() >= end;
    if (ready <= 0) continue;
    const ssize_t n = ::read(pipe_fds[0], buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (result.output.size() < (64u << 20)) result.output.append(buffer, static_cast<size_t>(n));
  }
  ::close(pipe_fds[0]);
  while (!result.late && !child.code()) {
    child.hand_on_stop();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    result.late = clock.seconds() >= end;
  }
  if (result.late) child.signal(SIGKILL);
  result.exit_code = child.code().value_or(128 + SIGKILL);
  return result;
}

BackgroundChild::BackgroundChild(const std::string& program, const std::vector<std::string>& arguments,
                                 const std::filesystem::path& log_file, double grace_seconds)
    : log_file_(log_file), grace_seconds_(grace_seconds), child_(start_server(program, arguments, log_file)) {}

BackgroundChild::~BackgroundChild() {
  try {
    stop();
  } catch (const Error&) {  // the child's exit code is lost, but nobody needs it
  }
}

int BackgroundChild::stop() {
  child_.signal(SIGTERM);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(grace_seconds_);
  while (running() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (running()) child_.signal(SIGKILL);
  return child_.wait();
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
      throw Error(ErrorKind::kNetwork,
                  "the server ended with code " + std::to_string(*child_.code()) + " before it was ready: " + last);
    if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal");
    if (std::chrono::steady_clock::now() > end)
      throw Error(ErrorKind::kNetwork,
                  "the server was not ready after " + std::to_string(static_cast<int>(seconds)) + " s: " + last);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

}  // namespace specdec::cli
