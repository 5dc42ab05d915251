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
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to the parent's environment
  int out = -1, err = -1;      // descriptors for the child's stdout and stderr, -1 = the parent's
  int keep = -1;               // a descriptor that stays open in the child, -1 = none
  std::string directory = {};  // the child's working directory, "" = the parent's
  bool outlives_us = false;    // true: has its own process group; false: gets SIGTERM when the parent ends
};

class Child {
 public:
  // Throws Error(kInternal) if no process can be created. If the program cannot be executed, the exit code is 127.
  explicit Child(const ChildStart& start);
  Child(Child&&) = default;
  // Returns the exit code if the child has ended (128 + signal if a signal killed it), else nothing. Does not wait.
  // Throws Error(kInternal) if waitpid fails, because the exit code is lost then.
  std::optional<int> code();
  void signal(int number);
  void hand_on_stop();  // forwards a stop request (base/progress.h) once, as SIGTERM
  int wait();           // waits until the child ends; forwards a stop request meanwhile

 private:
  pid_t pid_ = -1;
  bool group_, told_ = false;
  std::optional<int> code_;
};

}  // namespace specdec
