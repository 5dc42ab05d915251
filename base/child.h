// A program as a child process: started, told to stop, its exit code. What becomes of its output is the owner's
// business.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace specdec {

struct ChildStart {
  std::vector<std::string> argv;                                      // argv[0] is its path
  std::vector<std::pair<std::string, std::string>> environment = {};  // added to ours
  int out = -1, err = -1;                                             // what becomes its stdout and stderr, -1 = ours
  int keep = -1;                                                      // stays open in it, -1 = none
  std::string directory = {};                                         // that it works in, "" = ours
  bool outlives_us = false;  // a process group of its own; else it gets SIGTERM when we end
};

class Child {
 public:
  // Throws Error(kInternal) if there can be no process. A program that cannot be run ends with 127.
  explicit Child(const ChildStart& start);
  Child(Child&&) = default;
  // Its exit code once it has ended, 128 + signal if it was killed. Throws Error(kInternal) if nobody knows.
  std::optional<int> code();
  void signal(int number);
  void hand_on_stop();  // a stop request (base/progress.h) as SIGTERM, once
  int wait();           // to its end, handing on a stop request

 private:
  pid_t pid_ = -1;
  bool group_, told_ = false;
  std::optional<int> code_;
};

}  // namespace specdec
