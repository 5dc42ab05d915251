// Runs a program as a child process: starts it, stops it and returns its exit code. The owner decides what happens to
// its output.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace specdec {

struct ChildStart {
  std::vector<std::string> argv;                                      // argv[0] is the program's path
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to our own environment
  int out = -1, err = -1;      // descriptors for its stdout and stderr, -1 = ours
  int keep = -1;               // a descriptor that stays open in the child, -1 = none
  std::string directory = {};  // the child's working directory, "" = ours
  bool outlives_us = false;    // gets its own process group; otherwise it gets SIGTERM when we end
};

class Child {
 public:
  // Throws Error(kInternal) if no process can be created. A program that cannot be run ends with 127.
  explicit Child(const ChildStart& start);
  Child(Child&&) = default;
  // Returns the exit code once the child has ended, 128 + signal if it was killed. Throws Error(kInternal) if the code
  // is lost.
  std::optional<int> code();
  void signal(int number);
  void hand_on_stop();  // sends a stop request (base/progress.h) as SIGTERM, once
  int wait();           // waits for the end, and hands on a stop request meanwhile

 private:
  pid_t pid_ = -1;
  bool group_, told_ = false;
  std::optional<int> code_;
};

}  // namespace specdec
