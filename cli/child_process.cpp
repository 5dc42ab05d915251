#include "cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <string_view>
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

// A pipe from a child process. -1 stands for an end that is closed.
struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_write_end();
    if (read_end >= 0) ::close(read_end);
  }
  void open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(ErrorKind::kInternal, std::string("pipe: ") + std::strerror(errno));
    read_end = ends[0], write_end = ends[1];
  }
  bool is_open() const { return read_end >= 0; }
  void close_write_end() {
    if (write_end >= 0) ::close(write_end);
    write_end = -1;
  }
  // Reads once and passes the bytes to `take`. Closes the read end at the end of the pipe.
  void read(const std::function<void(std::string_view)>& take) {
    char buffer[65536];
    const ssize_t n = ::read(read_end, buffer, sizeof buffer);
    if (n > 0) return take({buffer, static_cast<size_t>(n)});
    if (n < 0 && errno == EINTR) return;
    ::close(read_end);
    read_end = -1;
  }
};

// Appends text to a file and passes each complete line to `on_line`.
class LineCutter {
 public:
  LineCutter(int file, const std::function<void(const std::string&)>& on_line) : file_(file), on_line_(on_line) {}
  void add(std::string_view text) {
    for (std::string_view rest = text; !rest.empty();) {
      const ssize_t n = ::write(file_, rest.data(), rest.size());
      if (n < 0 && errno != EINTR) break;  // drops the unwritten text: a full disk must not stop the child
      rest.remove_prefix(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    }
    line_ += text;
    for (size_t at; (at = line_.find('\n')) != std::string::npos; line_.erase(0, at + 1)) on_line_(line_.substr(0, at));
    if (line_.size() > kMostBytes) line_.clear();
  }
  void end() {
    if (!line_.empty()) on_line_(line_);
  }

 private:
  static constexpr size_t kMostBytes = 1 << 20;  // longest line that is passed on, in bytes
  int file_;
  const std::function<void(const std::string&)>& on_line_;
  std::string line_;
};

}  // namespace

ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments, const ChildErrors& errors,
                      const std::filesystem::path& directory, double most_seconds) {
  Pipe out, err;
  const int log = errors.file.empty() ? -1 : open_log(errors.file);
  const bool reads_lines = log >= 0 && errors.on_line;
  out.open();
  if (reads_lines) err.open();
  Child child(ChildStart{.argv = argv_of(program, arguments),
                         .out = out.write_end,
                         .err = reads_lines ? err.write_end : log,
                         .directory = directory.string()});
  out.close_write_end(), err.close_write_end();
  ChildResult result;
  LineCutter lines(log, errors.on_line);
  const SystemClock clock;
  const double end = clock.seconds() + most_seconds;
  // Stdout is read to its end, even after the program has ended, because its own children may still hold stdout. Stderr
  // is read until the program ends; what is left in that pipe then is read once.
  while (!result.late && (out.is_open() || (err.is_open() && !child.code()))) {
    pollfd waiting[] = {{out.read_end, POLLIN, 0}, {err.read_end, POLLIN, 0}};
    const int ready = ::poll(waiting, 2, 200);
    child.hand_on_stop();
    result.late = clock.seconds() >= end;
    if (ready <= 0) continue;
    if (waiting[0].revents != 0)
      out.read([&](std::string_view text) {
        if (result.output.size() < (64u << 20)) result.output += text;
      });
    if (waiting[1].revents != 0) err.read([&](std::string_view text) { lines.add(text); });
  }
  for (pollfd rest{err.read_end, POLLIN, 0}; err.is_open() && ::poll(&rest, 1, 0) > 0;)
    err.read([&](std::string_view text) { lines.add(text); });
  lines.end();
  if (log >= 0) ::close(log);
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
  } catch (const Error&) {  // ignored: the child's exit code is lost, and nobody needs it
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
