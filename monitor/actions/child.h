// Runs a command as a child process that continues if the monitor is killed. The child holds the monitor's lock until
// it exits, and its exit code is written to a file, which the next check reads. So no command runs twice.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace specdec::monitor {

struct ChildOrder {
  std::vector<std::string> argv = {};
  // Variables added to the monitor's own environment.
  std::vector<std::pair<std::string, std::string>> environment = {};
  // Once the child has ended, its exit code is in <outcome>.code and, if captured, its stdout in <outcome>.out.
  std::filesystem::path outcome = {};
  bool capture = false;  // true: captures the child's stdout; false: sends it to the monitor's stderr
  int lock = -1;         // descriptor of the monitor's lock, which the child keeps open
};
struct ChildEnd {
  int code = 0;        // exit code; 128 + signal if the child was killed
  std::string output;  // captured stdout, at most 16 MiB
};

// Runs the command and waits for it, or returns the recorded exit code of an earlier run. Forwards a stop request to
// the child as SIGTERM. Throws Error(kInternal) if the child cannot be started, Error(kIo) if its files cannot be
// written.
ChildEnd run_child(const ChildOrder& order);
// Removes the files of an outcome; call this once the outcome is recorded in the state.
void forget_outcome(const std::filesystem::path& outcome);

// Returns the argument vector that runs `command` with /bin/sh -c.
std::vector<std::string> shell(const std::string& command);

}  // namespace specdec::monitor
