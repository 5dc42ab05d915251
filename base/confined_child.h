// Work on foreign bytes in a forked child whose memory is bounded: what runs out of memory, overflows its stack or
// never ends kills the child, not the program. Linux.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace specdec {

struct ChildLimits {
  uint64_t memory_bytes = 512u << 20;     // address space on top of what the process has
  int cpu_seconds = 0, wall_seconds = 0;  // 0 = no limit
};

class ConfinedChild {
 public:
  // Runs `work` in a child, with the writing end of a pipe; what it throws ends the child. Its standard error goes
  // nowhere (Rust's abort message is not the user's). The child runs C++ and Rust after fork: call it where no other
  // thread holds a lock. Throws Error(kIo).
  ConfinedChild(const ChildLimits& limits, const std::function<void(int pipe)>& work);
  ~ConfinedChild();  // kills it
  ConfinedChild(const ConfinedChild&) = delete;
  ConfinedChild& operator=(const ConfinedChild&) = delete;

  // Fills `out` from the pipe; less only at its end. Throws Error(kIo); Error(kNetwork) after a stop request.
  size_t read(std::span<char> out);
  // After the end: " by signal …", or "" for an end of its own. Only wording: where SIGCHLD is ignored there is no
  // status.
  std::string death();

 private:
  int pid_ = -1, pipe_ = -1;
};

// Bounds this process, a child, as `limits` say, its memory on top of `space`: to its default goes what may kill it.
void confine(const ChildLimits& limits, uint64_t space);
uint64_t address_space_bytes();  // of this process

// In the child: all of `bytes`; the process ends where nobody reads them.
void write_pipe(int pipe, std::span<const char> bytes);

}  // namespace specdec
