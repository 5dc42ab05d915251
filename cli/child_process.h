// Child processes of the command line: stages of the loop, which run to their end, and servers, which run in the
// background and are stopped. Stages communicate through files, stdout and exit codes only.
#pragma once

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/child.h"

namespace specdec::cli {

struct ChildResult {
  int exit_code = 0;   // 128 + signal if a signal killed the program
  std::string output;  // the program's stdout, at most 64 MiB
  bool late = false;   // true: the program was killed because it had not ended in time
};

// Where the stderr of a child goes.
struct ChildErrors {
  std::filesystem::path file = {};  // stderr is appended to it; "" = the child inherits stderr
  // Called with each line of stderr (without the line end) when the line is written to `file`. May be empty.
  std::function<void(const std::string& line)> on_line = {};
};

// Runs the program until it ends and captures its stdout. `directory` is the child's working directory, "" = the
// current one. A stop request (base/progress.h) is passed on as SIGTERM. A program that cannot be executed gives exit
// code 127. A program that has not ended after `most_seconds` is killed; run_child() then returns without waiting for
// the end of the program, because a driver that hangs may prevent it. Throws Error(kInternal) if no process can be
// started.
ChildResult run_child(const std::string& program, const std::vector<std::string>& arguments,
                      const ChildErrors& errors = {}, const std::filesystem::path& directory = {},
                      double most_seconds = std::numeric_limits<double>::infinity());

// A server in the background. The destructor terminates it (SIGTERM, then SIGKILL after `grace_seconds`).
class BackgroundChild {
 public:
  // Starts the server. Its stdout and stderr are written to `log_file`, which replaces an older file.
  BackgroundChild(const std::string& program, const std::vector<std::string>& arguments,
                  const std::filesystem::path& log_file, double grace_seconds = 30);
  ~BackgroundChild();
  BackgroundChild(const BackgroundChild&) = delete;
  BackgroundChild& operator=(const BackgroundChild&) = delete;

  // Waits until `pattern` appears in the log; returns the rest of that line. Throws Error(kNetwork), the kind that
  // means "try again", if the child ends first, `seconds` pass or a stop is requested. Except after a stop request, the
  // message has the last line of the log.
  std::string wait_for_line(const std::string& pattern, double seconds);
  bool running() { return !child_.code(); }
  int stop();  // sends SIGTERM, and SIGKILL after `grace_seconds`; returns the exit code

 private:
  std::filesystem::path log_file_;
  double grace_seconds_;
  Child child_;
};

}  // namespace specdec::cli
