// Runs a command as a child that outlives a killed monitor. The child keeps the monitor's lock until it has ended, and
// writes its exit code where the next check finds it, so that nothing runs twice.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace specdec::monitor {

struct ChildOrder {
  std::vector<std::string> argv = {};
  std::vector<std::pair<std::string, std::string>> environment = {};  // is added to ours
  // The child leaves its exit code in <outcome>.code once it has ended, and its stdout in <outcome>.out.
  std::filesystem::path outcome = {};
  bool capture = false;  // else its stdout goes to our stderr, because our stdout is the result's
  int lock = -1;         // is a descriptor that the child keeps open
};
struct ChildEnd {
  int code = 0;        // is 128 + signal if the child was killed
  std::string output;  // has at most 16 MiB
};

// Runs it to its end, or takes the end of an earlier start that is on record. A stop request goes to the child as
// SIGTERM. Throws Error(kInternal) if it cannot be started, Error(kIo) if its files cannot be written.
ChildEnd run_child(const ChildOrder& order);
// Removes the files of an outcome that has been recorded.
void forget_outcome(const std::filesystem::path& outcome);

// Returns /bin/sh -c with the command.
std::vector<std::string> shell(const std::string& command);

}  // namespace specdec::monitor
