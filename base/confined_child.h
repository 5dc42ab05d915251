// Does work on untrusted bytes in a forked child with bounded memory. If the work runs out of memory, overflows its
// stack or never ends, it kills the child and not the program. Linux only.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace specdec {

struct ChildLimits {
  uint64_t memory_bytes = 512u << 20;     // address space in addition to what the process has
  int cpu_seconds = 0, wall_seconds = 0;  // 0 = no limit
};

class ConfinedChild {
 public:
  // Runs `work` in a child with the writing end of a pipe; an exception ends the child. The child's stderr is discarded
  // (Rust's abort message is not for the user). The child runs C++ and Rust after fork, so no other thread may hold a
  // lock now. Throws Error(kIo).
  ConfinedChild(const ChildLimits& limits, const std::function<void(int pipe)>& work);
  ~ConfinedChild();  // kills the child
  ConfinedChild(const ConfinedChild&) = delete;
  ConfinedChild& operator=(const ConfinedChild&) = delete;

  // Fills `out` from the pipe, and returns fewer bytes only at its end. Throws Error(kIo), and Error(kNetwork) after a
  // stop request.
  size_t read(std::span<char> out);
  // Call after the end: returns " by signal …", or "" if the child ended by itself. Use it for messages only: if
  // SIGCHLD is ignored there is no status.
  std::string death();

 private:
  int pid_ = -1, pipe_ = -1;
};

// Applies `limits` to this process, which is a child; memory counts on top of `space` bytes. Resets the signals that
// end it to their default.
void confine(const ChildLimits& limits, uint64_t space);
uint64_t address_space_bytes();  // bytes of address space that this process has

// Writes all of `bytes`, in the child. Ends the process if nobody reads them.
void write_pipe(int pipe, std::span<const char> bytes);

}  // namespace specdec
